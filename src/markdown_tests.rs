use expect_test::{Expect, expect};
use serde_json::json;

use super::{MarkdownOptions, render};
use crate::transcript::{Architecture, parse_transcript};

fn check(options: &MarkdownOptions, expected: &Expect) {
    let part = |id: &str, session: &str, message: &str, rest: serde_json::Value| {
        let mut part = json!({"id": id, "sessionID": session, "messageID": message});
        part.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        part
    };
    let step = |id: &str, session: &str, created: i64| {
        json!({"id": id, "sessionID": session, "role": "assistant", "time": {"created": created, "completed": created},
            "tokens": {"input": 10, "output": 5, "reasoning": 1, "cache": {"read": 2, "write": 3}}, "cost": 0.5})
    };
    let child = json!({"messages": [{"info": step("msg_c", "ses_2", 3), "parts": [
        part("prt_c", "ses_2", "msg_c", json!({"type": "text", "text": "Deep\n\nwork."}))]}]});
    let mut failed = step("msg_2", "ses_1", 2);
    failed["error"] = json!({"name": "APIError", "data": {"message": "over\nloaded"}});
    let export = json!({"info": {"id": "ses_1"}, "children": [child], "messages": [
        {"info": {"id": "msg_1", "sessionID": "ses_1", "role": "user", "time": {"created": 1}}, "parts": [
            part("prt_1", "ses_1", "msg_1", json!({"type": "text", "text": "Do it."})),
            part("prt_2", "ses_1", "msg_1", json!({"type": "file", "mime": "image/png", "url": "data:image/png;base64,AAAA"}))]},
        {"info": failed, "parts": [
            part("prt_3", "ses_1", "msg_2", json!({"type": "reasoning", "text": "Hm."})),
            part("prt_4", "ses_1", "msg_2", json!({"type": "tool", "callID": "c", "tool": "bash", "state": {"status": "completed",
                "input": {"command": "cat x.md"}, "output": "```sh\nls\n```\n4\n5", "title": "Read", "time": {"start": 1, "end": 8}}})),
            part("prt_5", "ses_1", "msg_2", json!({"type": "tool", "callID": "c", "tool": "task", "state": {"status": "completed",
                "input": {"description": "dig", "subagent_type": "general"}, "output": "Dug.", "metadata": {"sessionId": "ses_2"}}}))]},
    ]});
    let transcript = parse_transcript(Architecture::OpenCode, &export.to_string()).unwrap();
    expected.assert_eq(&render(&transcript.state, options));
}

#[test]
fn a_conversation_reads_well() {
    check(
        &MarkdownOptions::default(),
        &expect![[r#"
        ## User

        Do it.

        - `file` (image/png, 3 bytes)

        ## Assistant

        <details><summary>Thinking</summary>

        Hm.

        </details>

        **bash** Read · success

        ```json
        {
          "command": "cat x.md"
        }
        ```

        Result (7 ms):

        ````
        ```sh
        ls
        ```
        4
        5
        ````

        ### Subagent general: dig · success

        > ## Assistant
        >
        > Deep
        >
        > work.

        > *21 tokens: 10 in, 5 out, 1 thinking, 2 + 3 cached; cost 0.5*

        Answer:

        ```
        Dug.
        ```

        > **Error:** over loaded

        ---

        *42 tokens: 20 in, 10 out, 2 thinking, 4 + 6 cached; cost 1*
    "#]],
    );
}

#[test]
fn thinking_and_long_output_can_be_left_out() {
    check(
        &MarkdownOptions::default().thinking(false).max_lines(2),
        &expect![[r#"
        ## User

        Do it.

        - `file` (image/png, 3 bytes)

        ## Assistant

        **bash** Read · success

        ```json
        {
          "command": "cat x.md"
        … 1 more lines
        ```

        Result (7 ms):

        ````
        ```sh
        ls
        … 3 more lines
        ````

        ### Subagent general: dig · success

        > ## Assistant
        >
        > Deep
        >
        > work.

        > *21 tokens: 10 in, 5 out, 1 thinking, 2 + 3 cached; cost 0.5*

        Answer:

        ```
        Dug.
        ```

        > **Error:** over loaded

        ---

        *42 tokens: 20 in, 10 out, 2 thinking, 4 + 6 cached; cost 1*
    "#]],
    );
}

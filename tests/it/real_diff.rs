//! What a real server says about the files that a turn changed.

use opencode_conductor::{
    ChangeKind, Completion, Limit, WaitOptions,
    test_util::{Script, Step},
};

use super::{
    real_manager::House,
    support::stage::{bash, texts},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_tells_what_each_turn_changed() {
    let Some(house) = House::open(1).await else { return };
    let room = house.room("diff").await;
    let turn = |command: &str| Script::new([bash(command, ""), Step::text("done")]);
    let added = room.ask("add", &turn("printf 'one\\ntwo\\n' > new.txt; ls")).await;
    assert_eq!(added.diff().await.unwrap().len(), 1, "at once");
    let modified = room.ask("modify", &turn("printf 'three\\n' >> new.txt; ls")).await;
    let deleted = room.ask("delete", &turn("rm new.txt; ls")).await;
    let nothing = room.ask("look", &texts("nothing to do")).await;

    for (result, kind, lines, patch) in [
        (&added, ChangeKind::Added, (2, 0), "+one\n+two\n"),
        (&modified, ChangeKind::Modified, (1, 0), " two\n+three\n"),
        (&deleted, ChangeKind::Deleted, (0, 3), "-one\n-two\n-three\n"),
    ] {
        let changes = result.diff().await.unwrap();
        let [change] = &changes[..] else { panic!("{changes:?}") };
        assert_eq!((change.path.as_str(), &change.kind), ("new.txt", &kind));
        assert_eq!((change.additions, change.deletions), lines);
        assert!(change.patch.contains(patch), "{}", change.patch);
        let again = room.manager.diff(&room.session, &result.submission.message_id).await.unwrap();
        assert_eq!(again, changes, "{kind:?}: the turns since change nothing about it");
    }
    assert_eq!(nothing.diff().await.unwrap(), []);
}

/// The server stores what a step changed some time after it was cut off.
#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_tells_what_a_turn_changed_that_was_cut_off() {
    let Some(house) = House::open(1).await else { return };
    let room = house.room("diff of a part").await;
    let steps = [bash("echo 1 > one.txt; ls", ""), bash("echo 2 > two.txt; ls", ""), Step::text("done")];
    let limits = WaitOptions::default().max_steps(1);
    let result =
        room.manager.prompt(room.input("two steps", &Script::new(steps)).wait(limits)).await.unwrap();
    assert!(matches!(result.completion, Completion::TimedOut { limit: Limit::Steps, .. }), "{result:?}");
    let changes = result.diff().await.unwrap();
    assert!(changes.iter().any(|change| change.path == "one.txt"), "{changes:?}");
}

//! What a real server says about the files that a turn changed.

use opencode_conductor::{
    ChangeKind,
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

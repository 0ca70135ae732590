//! The demo of virtual machines, as a person sees it.

use std::path::Path;

use cluster::Quiet;
use kubevirt::scene;

use crate::stage::Stage;

#[test]
fn demo_machine_answers_by_name_before_and_after_its_move() {
    let Some(stage) = Stage::enter("kv-demo") else {
        return;
    };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/virtual-machines.yaml");
    let story = scene::play(&stage.cluster, &file, &mut Quiet);
    let story = story.unwrap_or_else(|error| panic!("{error}\n{}", stage.evidence()));
    let ([alpha, beta], [moved, other]) = (&story.before, &story.after);
    assert_ne!(moved.node, alpha.node);
    assert_eq!((&moved.mac, &moved.address), (&alpha.mac, &alpha.address));
    assert_eq!(other, beta);
    assert_ne!(alpha.address, beta.address);
    assert!(
        story
            .pings
            .answers
            .iter()
            .all(|address| *address == alpha.address),
        "{story:?}"
    );
    println!("{:?}", story.pings);
    stage
        .kubectl
        .delete(["--filename", &file.display().to_string()])
        .unwrap();
}

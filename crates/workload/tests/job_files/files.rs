//! Outputs of a stage that later stages read.

use crate::{complaint, read};
use amalgam_core::vocabulary::Workdir;
use amalgam_workload::Format;

/// A stage `map` of two tasks with these outputs, and after it, from line 6, a stage `reduce` with these inputs.
fn map_and_reduce(outputs: &str, inputs: &str) -> String {
    format!(
        "[[stage]]\nname = 'map'\ntasks = 2\ncommand = 'x'\noutputs = [{outputs}]\n\
         [[stage]]\nname = 'reduce'\ncommand = 'x'\nafter = ['map']\ninputs = [{inputs}]\n"
    )
}

#[test]
fn a_stage_reads_outputs_of_an_earlier_stage() {
    // The reader is written before the stages that it depends on.
    let reversed = "[[stage]]\nname = 'reduce'\ncommand = 'x'\nafter = ['map', 'a']\ninputs = ['map/*']\n\
                    [[stage]]\nname = 'a'\ncommand = 'x'\n\
                    [[stage]]\nname = 'map'\ncommand = 'x'\nafter = ['a']\noutputs = ['o']\n";
    for text in [&map_and_reduce("'a', 'b/part-{index}'", "'map/*', 'map/b/part-{index}'"), reversed] {
        let text = text.replace("name = 'reduce'", "name = 'reduce'\ntasks = 2");
        let job = read(&text, Format::Toml).unwrap();
        let (map, reduce) = (&job.stages[job.stages.len() - 2], &job.stages[job.stages.len() - 1]);
        assert_eq!((map.name.as_str(), reduce.name.as_str()), ("map", "reduce"));
        assert_eq!((&map.program.workdir, &reduce.program.workdir), (&Workdir::Own, &Workdir::Own));
        assert_eq!(job.stages[reduce.inputs[0].stage as usize].name, "map");
        assert_eq!(reduce.inputs[0].files, "*");
    }
    let alone = read("command = 'x'\noutputs = ['o']", Format::Toml).unwrap();
    assert_eq!(
        (&alone.stages[0].outputs[..], &alone.stages[0].program.workdir),
        (&["o".to_owned()][..], &Workdir::Own)
    );
}

// Long: a table of wrong inputs and outputs and their errors.
#[test]
fn errors_about_inputs_and_outputs_have_a_remedy() {
    let own = |text: &str| map_and_reduce("'o'", "'map/o'").replacen("tasks = 2", text, 1);
    for (text, expected) in [
        (
            map_and_reduce("'/tmp/o'", ""),
            "5:12: `/tmp/o` cannot be an output: it is absolute\n  help: write a path relative to the task's working \
             directory, such as `counts.txt`",
        ),
        (
            map_and_reduce("'o', '../o'", ""),
            "5:17: `../o` cannot be an output: it has an empty part, `.` or `..`\n  help: write a path that stays in the \
             task's working directory",
        ),
        (
            map_and_reduce("'o', 'o'", ""),
            "5:17: the output `o` is declared twice\n  help: remove one; the first is on line 5",
        ),
        (
            map_and_reduce("'a', 'a/b'", ""),
            "5:12: `a` is an output and also the directory of `a/b`\n  help: rename one of them",
        ),
        (
            map_and_reduce("'part-1', 'part-{index}'", ""),
            "5:22: the outputs `part-1` and `part-{index}` are the same file for the task of index 1\n  help: rename \
             one of them",
        ),
        (
            map_and_reduce("'a{index}', 'a1/b'", ""),
            "5:24: `a{index}` is an output and also the directory of `a1/b` for the task of index 1\n  help: rename \
             one of them",
        ),
        (
            map_and_reduce("'{item}'", ""),
            "5:12: `{item}` cannot be an output: the only placeholder in braces is `{index}`\n  help: use \
             `{index}`, or remove the braces",
        ),
        (
            map_and_reduce("'o'", "'map'"),
            "10:11: `map` does not name outputs of a stage\n  help: write STAGE/PATTERN, such as `map/*` for all outputs of \
             `map`, or `map/part-{index}.txt`",
        ),
        (map_and_reduce("'o'", "'mapp/o'"), "10:11: stage `mapp` not found\n  help: did you mean `map/o`?"),
        (
            map_and_reduce("'o'", "'map/o'").replace("after = ['map']", "retries = 1"),
            "10:11: `reduce` reads outputs of `map`, which is not in its `after`\n  help: add `map` to its `after`",
        ),
        (
            map_and_reduce("'o'", "'map/o', 'map/o'"),
            "10:20: the input `map/o` is declared twice\n  help: remove one; the first is on line 10",
        ),
        (
            map_and_reduce("'o', 'p-{index}'", "'map/x'"),
            "10:11: `map/x` matches no output of `map`\n  help: its outputs are o, p-{index}",
        ),
        (
            map_and_reduce("'p-{index}'", "'map/p-{index}'").replace("after =", "tasks = 3\nafter ="),
            "11:11: `map/p-{index}` matches no output of `map` for the task of index 2\n  help: its outputs are p-{index}",
        ),
        (
            map_and_reduce("", "'map/*'"),
            "10:11: `map/*` matches no output of `map`\n  help: declare its outputs: `outputs = [\"FILE\"]` in the stage \
             `map`",
        ),
        (
            map_and_reduce("'o', 'p'", "'map/o', 'map/p'").replace("tasks = 2", "tasks = 60000"),
            "10:20: a task of `reduce` has 120000 input files; at most 100000 are allowed\n  help: merge the files in \
             a stage between the two",
        ),
        (
            own("workdir = 'submitted'"),
            "3:11: tasks with `inputs` or `outputs` require directories of their own\n  help: remove `workdir`, or \
             write `own`; `$AMALGAM_SUBMIT_DIR` is the directory of the submission",
        ),
        (
            "outputs = ['o']\n".to_owned() + &map_and_reduce("'o'", ""),
            "1:11: `outputs` is not allowed beside a list of stages\n  help: move it into the stage that it belongs to",
        ),
    ] {
        assert_eq!(complaint(&text), format!("job.toml:{expected}"), "{text}");
    }
}

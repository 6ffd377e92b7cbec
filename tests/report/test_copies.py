from precflow.report import copies, html


def test_a_finding_is_copied_with_everything_that_it_says(misaligned):
    finding = misaligned.findings[0]
    text = copies.write_finding(finding)
    assert text.startswith("PF214 (certain): eps of layer_norm differs")
    for said in (finding.where, finding.fix, finding.try_it, *(value for _, value in finding.evidence), *finding.sources):
        assert said in text


def test_a_prompt_says_when_the_fault_is_mended_and_what_must_not_be_done_for_it(misaligned):
    prompt = copies.write_prompt(misaligned, misaligned.findings[0])
    assert copies.write_finding(misaligned.findings[0]) in prompt
    assert misaligned.command in prompt
    assert misaligned.region.start in prompt
    assert "exit code is 0" in prompt
    assert "Loosen no limit" in prompt


def test_names_of_a_run_stay_text_in_what_is_copied(nasty):
    assert "\x1b" not in copies.write_prompt(nasty, nasty.findings[0])
    assert "<script>alert" not in html.render(nasty)

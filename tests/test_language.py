"""What is said in two languages: every text has its other one, with the same values."""

import re
from collections import defaultdict
from html import unescape

import pytest
import yaml
from sentences import list_errors, read_module

from precflow import cli, language, resources
from precflow.diagnosis.advice.rule_files import load_rules
from precflow.diagnosis.advice.rule_templates import check_template
from precflow.diagnosis.evidence.names import EVIDENCE
from precflow.environment.known_issues import load_issues
from precflow.report import wording
from precflow.scan.rules import load_rules as load_scan_rules
from precflow.verbs import explain, ls

CHINESE = re.compile("[\u4e00-\u9fff]")
PLACE = re.compile(r"{#?}")
FILLED = re.compile(r"{(\d)!?}")
CATALOGUE = language.load("zh")
ENTRIES = language.read_entries("zh")
FOLDER = resources.directory("templates")
TEMPLATES = sorted(FOLDER.rglob("*.j2"))
UNTRANSLATED = {"precflow", "relative_l2", "UTC", "EN", "token", "ulp"}
SAYS = re.compile(r"(?<![\w./=_-])[a-z]{2,} (?:[a-z]{2,}|[A-Z]+)\b")  # two words, the first of them no part of a name
OF_THE_SCREEN = {"and {#} more"}
RULES = load_rules([resources.directory("conf") / "rule"])


def list_texts(template):
    """Yield the texts of a template: what stands between its tags, statements, values and marks of Markdown."""
    source = template.read_text(encoding="utf-8")
    quoted = re.findall(r'(?:title|aria-label|placeholder|alt|data-label)="([^"{}<>]+)"', source)
    source = re.sub(r"{#.*?#}|<(script|style|svg)\b.*?</\1>|<code>.*?</code>", "\0", source, flags=re.DOTALL)
    source = re.sub(r"<[^>]*>", "\0", re.sub(r"{%.*?%}|{{.*?}}", "\0", source, flags=re.DOTALL), flags=re.DOTALL)
    marks = r"[\0\n|]|\*\*|`| · " if template.name.endswith(".md.j2") else r"[\0\n]| · "
    for text in (*quoted, *re.split(marks, source)):
        for sentence in re.split(r"(?<=[.?!]) +(?=[A-Z])", unescape(text)):
            words = sentence.strip(" *#->.,:;()+")
            if len(re.findall(r"[a-z]{2,}", words)) and words not in UNTRANSLATED:
                yield words


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_every_text_of_the_page_is_said_in_chinese(template):
    lines = {re.sub("<[^>]*>", "", text.replace("{#}", "{}")).lower() for text in ENTRIES}
    missing = [text for text in list_texts(template) if not any(text.lower() in line for line in lines)]
    assert missing == []


# Modules whose literals are lines of a screen.
SCREENS = (
    "cli.py",
    "verbs/*.py",
    "report/screens/*.py",
    "report/scan.py",
    "report/environment_check.py",
    "report/broken.py",
    "environment/machine_checks.py",
    "environment/compatibility.py",
    "environment/requirements.py",
    "stages/side_check.py",
    "breakdown.py",
    "run/pruning.py",
    "run/plan.py",
    "run/sizes.py",
    "scan/tree.py",
)
TYPED = re.compile(r"(?:precflow|python|pip|git|docker|mv|rm|with|sides=|[a-z]+ [A-Z]+ |[a-z]+ [a-z]+/)\S*")  # not a sentence
NO_SCREEN = re.compile(
    r"`precflow explain|^test compares|^Values carry|^On the command line a|\"Set by\"|^refused in|^Precedence|^#|^\| key"
    r"|VERB = Verb|is in the schema|: the smallest recipe that was|^DUMP|communicate with the NVIDIA"  # pages, others' words
    r"|} not usable$|^and {} before|} to know of"  # made of words that are filled in
)
IN_OTHER_WORDS = ("precflow/__init__.py", "precflow/agent/emulated/driver.py")  # those of Python and of torch


def list_pieces(text):
    """Yield what is looked up of a text: its lines, cells and sentences, as far as they have words of their own."""
    for piece in re.split(r" {2,}|\n|(?<=[.?!]) +(?=[A-Z{])", text):
        if len(re.findall(r"(?<![\w./_=-])[a-z]{2,}(?![\w/_=(-]|\.\w)", piece)) > 2 and not TYPED.match(piece.strip()):
            yield piece.strip()


def words_of(text):
    """Return the words of a text, without places for values, and without names and commands: the catalogue may have places."""
    plain = re.sub(r"{[^{}]*}|%[srd]", "_", re.sub(r"(?<=[a-z])\.?{}(?=[\s:;,]|$)", " ", text))  # what is added behind a word
    return " ".join(
        re.findall(r"(?<![^\s,;:\"'`|])(?!(?:mv|rm|python|torchrun|pip|def)\b)[a-z']+(?![^\s,;:.?\"'`|]|[.=]\S)", plain)
    )


KNOWN = "\n".join(map(words_of, ENTRIES))


def test_every_error_is_said_in_chinese():
    """Its sentences, wherever it is made; values are looked up by themselves."""
    said = [(place, text) for place, text in list_errors() if not place.startswith(IN_OTHER_WORDS)]
    pieces = {piece: place for place, text in said for piece in list_pieces(text)}
    assert len(pieces) > 600  # they are found
    assert {piece: place for piece, place in pieces.items() if words_of(piece) not in KNOWN} == {}


def test_every_text_of_a_screen_of_a_verb_is_said_in_chinese():
    package = resources.directory("conf").parent / "precflow"
    missing = [
        (place, piece)
        for pattern in SCREENS
        for path in sorted(package.glob(pattern))
        for place, text in read_module(path.read_text(encoding="utf-8"), path.name)
        for piece in list_pieces(text)
        if words_of(piece) not in KNOWN and not NO_SCREEN.search(piece)
    ]
    assert missing == []


SCANNED = load_scan_rules()
ISSUES = load_issues()


def test_rules_of_a_scan_and_known_issues_say_the_same_in_both_languages():
    """Where a text has a word that is no name: what is to be done may be the name of a function alone."""
    texts = [(rule.id, getattr(rule, key)) for rule in SCANNED.rules for key in ("why", "do")]
    texts += [(issue.id, getattr(issue, key)) for issue in ISSUES for key in ("title", "symptom", "do")]
    texts += SCANNED.titles.items()
    says = [(name, text) for name, text in texts if SAYS.search(text) and not CHINESE.search(CATALOGUE.translate(text))]
    assert [entry for entry in says if not entry[-1].startswith("pip install ")] == []


def test_every_key_is_explained_in_chinese():
    meanings = {entry.meaning for entry in (*explain.list_sections(), *explain.list_all())}
    sentences = {sentence for meaning in meanings for sentence in re.split(r"(?<=[.?!]) +(?=[A-Z])", meaning)}
    assert len(sentences) > 200
    assert [text for text in sorted(sentences) if not CHINESE.search(CATALOGUE.translate(text))] == []


def test_no_text_is_said_in_two_ways():
    said = defaultdict(set)
    for path in sorted((resources.directory("conf") / "translation" / "zh").glob("*.yaml")):
        if path.stem != "script":
            for text, line in yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader).value:
                said[text.value].add(line.value)
    assert {text: lines for text, lines in said.items() if len(lines) > 1 and text not in OF_THE_SCREEN} == {}


def test_every_line_of_the_catalogue_takes_the_values_that_its_english_has():
    for text, said in (*ENTRIES.items(), *language.read_entries("zh", script=True).items()):
        assert set(map(int, FILLED.findall(said))) == set(range(len(PLACE.findall(text.replace("{&}", "{}"))))), text
        assert CHINESE.search(said) or FILLED.search(said), text


def test_every_line_of_the_catalogue_is_the_one_that_fits_its_own_text():
    """No other line may fit a text better: it would be said in the words of that one."""
    for text, said in ENTRIES.items():
        places = PLACE.findall(text)
        values = [str(44 + number) if place == "{#}" else "abc"[number % 3] * 3 for number, place in enumerate(places)]
        filled = PLACE.sub(lambda _, left=list(values): left.pop(0), text.replace("{&}", "seeds set"))
        listed = said.replace("{0}", ENTRIES["seeds set"]) if "{&}" in text else said
        expected = FILLED.sub(lambda place, all_of=values: all_of[int(place[1])], listed)
        assert CATALOGUE.translate(filled) == expected


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_says_the_same_in_both_languages(rule):
    assert rule.zh is not None, "its file has no `zh`"
    pairs = [(rule.title, rule.zh.title), (rule.why, rule.zh.why), (rule.fix, rule.zh.fix)]
    assert len(rule.zh.against) == len(rule.against)
    pairs += [(one.because, said) for one, said in zip(rule.against, rule.zh.against, strict=True)]
    pairs += [(rule.where, rule.zh.where)] if rule.zh.where else []
    for english, chinese in pairs:
        says_anything = re.search("[a-z]{2}", re.sub(r"{{.*?}}", "", english))  # else it is a sentence of the evidence alone
        assert CHINESE.search(chinese) or not says_anything, english
        assert check_template(chinese, condition=False) == ([], check_template(english, condition=False)[1])


def test_words_and_names_of_evidence_are_said_in_chinese():
    words = [
        *wording.STATUS_MEANINGS.values(),
        *map(wording.words, wording.STATUS_MEANINGS),
        *wording.ROLE_MEANINGS,
        *wording.ROLE_MEANINGS.values(),
        *wording.CHECK_WORDS.values(),
        *wording.TASK_WORDS.values(),
        *wording.VERDICT_SYMBOLS,
        wording.EMULATED,
        *(name.label for name in EVIDENCE.values()),
        *filter(None, (name.tests for name in EVIDENCE.values())),
    ]
    assert [text for text in words if not CHINESE.search(CATALOGUE.translate(text)) and text not in {"epsilon", "token"}] == []


def test_values_stay_what_they_are_and_unknown_sentences_stay_english():
    translate = CATALOGUE.translate
    assert translate("3 records exceed their limits, first target / linear") == "3 条记录超出阈值，首条 target / linear"
    assert translate("nobody has ever computed this again in float64") == "nobody has ever computed this again in float64"
    assert translate("unet.down in float64") == "unet.down 改用 float64"
    assert translate("nobody has said this before") == "nobody has said this before"
    assert translate("nobody has said this before; no tensor was compared") == "nobody has said this before；没有比对张量"
    assert translate("relative_l2 1.2e-3, 1 836 times its limit 1e-5") == "relative_l2 1.2e-3，为阈值 1e-5 的 1 836 倍"


def test_a_text_of_a_finding_is_said_as_its_rule_says_it():
    with language.speaking("zh", {"eps differs": "eps 不同"}):
        assert language.said("eps differs") == "eps 不同"
        assert language.said("confirmed: eps differs") == "证实：eps 不同"
    assert language.said("eps differs") == "eps differs"


def test_a_page_keeps_its_tags_names_and_escapes():
    page = (
        '<p title="All records">no tensor was <em>x</em></p><td translate="no">pass</td><code>fail</code>'
        "<li>a &lt;b&gt; (on the target)</li>"
    )
    shown = language.translate_page(page, "zh")
    assert '<p title="全部记录">' in shown
    assert '<td translate="no">pass</td><code>fail</code>' in shown
    assert "<li>a &lt;b&gt;（目标侧）</li>" in shown


def test_tags_inside_a_sentence_move_with_their_words():
    page = '<p>introduces the error <b class="n">12</b></p>'
    assert language.translate_page(page, "zh") == '<p>引入误差 <b class="n">12</b></p>'


def test_columns_of_a_screen_stay_below_each_other():
    with language.speaking("zh"):
        assert language.translate_lines("   exit 1\n   x   no   abc", len).split("\n")[0] == "   退出码 1"
        line = language.translate_lines("   none      3 s   no findings", lambda text: len(text) + len(CHINESE.findall(text)))
    assert line == "   无        3 s   无诊断项"


def test_names_that_are_typed_stay_as_they_are_in_columns():
    with language.speaking("zh"):
        assert language.translate_lines(" report   reference   kept", len).split() == ["report", "标杆侧", "沿用"]


def test_markdown_keeps_its_marks_and_its_code():
    text = "## What to do\n\n- **Do:** `no` \\| no\\_x\n\n| status |\n|---|\n| fail |\n"
    shown = language.translate_markdown(text, "zh", escape=str)
    assert shown == "## 处理建议\n\n- **处理：** `no` \\| no\\_x\n\n| 状态 |\n|---|\n| 超限 |\n"


ROOT = resources.directory("conf").parent
CHINESE_PAGES = [ROOT / "README.zh.md", *sorted(set(ROOT.glob("docs/zh/*.md")) - {ROOT / "docs/zh/glossary.md"})]
BLOCK = re.compile(r"^```(?:bash|yaml)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", CHINESE_PAGES, ids=lambda path: path.name)
def test_commands_of_a_chinese_page_are_those_of_the_english_one(page):
    """They are run there; and each link leads to a file."""
    english = ROOT / "README.md" if page.name == "README.zh.md" else ROOT / "docs" / page.name
    commands, known = (
        [re.sub(r"\s+#.*", "", line) for block in BLOCK.findall(one.read_text(encoding="utf-8")) for line in block.splitlines()]
        for one in (page, english)
    )
    assert [line for line in commands if line not in known] == []
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("with dropout removed (33 places)", "已去除 dropout（33 处）"),
        ("with seeds set and deterministic algorithms", "已固定随机种子、已启用确定性算法"),
        (
            "with dropout removed (on the target, 2 places), draws moved to the CPU (1 place) and seeds set",
            "已去除 dropout（目标侧，2 处）、随机数已改在 CPU 上生成（1 处）、已固定随机种子",
        ),
        (
            "with another learning rate (1 parameter group on the reference, 2 on the target)",
            "已更改学习率（标杆侧 1 个参数组，目标侧 2 个参数组）",
        ),
        ("with seeds set and a soup of letters", "with seeds set and a soup of letters"),
    ],
)
def test_an_enumeration_is_said_where_all_of_it_is_known(english, chinese):
    assert language.load("zh").translate(english) == chinese


LISTED = "recipe site emulate capture executor standard metric rule whatif known_issue compatibility".split()


def test_every_title_that_is_listed_is_said_in_chinese():
    titles = {entry.title for group in LISTED for entry in ls.list_entries(group, [])}
    assert len(titles) > 200
    assert [text for text in sorted(titles) if SAYS.search(text) and not CHINESE.search(CATALOGUE.translate(text))] == []


def test_no_catalogue_is_read_for_english(monkeypatch, capsys):
    monkeypatch.setattr(language, "read_entries", None)
    monkeypatch.setenv("PRECFLOW_LANG", "en")
    assert cli.main(["ls", "--help"]) == cli.main(["ls"]) == 0
    assert "usage: precflow ls" in capsys.readouterr().out


def test_a_file_of_a_team_that_has_become_unreadable_costs_no_sentence(tmp_path, monkeypatch):
    (tmp_path / "ours.yaml").write_text("rules: [\n")
    monkeypatch.setattr(language, "_further", [])
    language.load.cache_clear()
    language.read_also([tmp_path])
    assert language.load("zh").translate("no tensor was compared") == "没有比对张量"
    language.load.cache_clear()

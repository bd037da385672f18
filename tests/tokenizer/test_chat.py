"""Chat templates render as ``transformers`` renders them, in a sandbox."""

import pytest

from tests.tokenizer import vocabularies
from tokenizer import TokenizerError, byte_level, chat, load

_TURNS = [{"role": "user", "content": "Hi"}]


def test_chatml() -> None:
    tiny = byte_level()
    text = tiny.apply_chat_template(_TURNS, tokenize=False)
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    ids = tiny.apply_chat_template(_TURNS)
    assert ids[0] == tiny.id_of("<|im_start|>")
    assert tiny.decode(ids, skip_special=False) == text
    assert tiny.apply_chat_template(_TURNS, tokenize=False, add_generation_prompt=False).endswith(
        "<|im_end|>\n"
    )


def test_template_of_a_model() -> None:
    ours = load(vocabularies.path("smollm2"))
    text = ours.apply_chat_template(_TURNS, tokenize=False)
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_start|>assistant\n")
    ids = ours.apply_chat_template(_TURNS)
    assert ours.decode(ids, skip_special=False) == text
    assert (ids == ours.id_of("<|im_start|>")).sum() == 3


def test_blocks_are_trimmed() -> None:
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}"
    assert chat.render(source, _TURNS) == "Hi\n"


def test_helpers() -> None:
    tools = [{"name": "f", "text": "é<&"}]
    assert chat.render("{{ tools | tojson }}", _TURNS, tools=tools) == '[{"name": "f", "text": "é<&"}]'
    assert len(chat.render("{{ strftime_now('%Y-%m-%d') }}", _TURNS)) == 10
    assert chat.render("{% generation %}{{ bos }}{% endgeneration %}", _TURNS, variables={"bos": "x"}) == "x"
    assert chat.render("{% for m in [1, 2] %}{% break %}{% endfor %}ok", _TURNS) == "ok"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "refused"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages.append(1) }}", "refused"),
        ("{{ ''.__class__.__mro__ }}", "refused"),
    ],
)
def test_refusals(source: str, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        chat.render(source, _TURNS)


def test_vocabulary_without_template() -> None:
    with pytest.raises(TokenizerError, match="no chat template"):
        load(vocabularies.path("cl100k")).apply_chat_template(_TURNS)

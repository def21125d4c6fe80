"""The words for what heads do: badges, titles and labels of a survey."""

from collections.abc import Mapping
from typing import Any

# Roles as a cell names them; any other role by its first BADGE_LETTERS letters
ROLE_BADGES = {
    "previous": "prev",
    "positional": "pos",
    "delimiter sink": "sink",
    "broad": "broad",  # the last in order: never followed by MORE
    "coreference": "cor",
    "negation": "neg",
    "preposition": "prep",
    "agreement": "agr",
    "object": "obj",
}
BADGE_LETTERS = 4  # of a role that has no badge here
MORE_ROLES_MARK = "+"  # after the badge of a head that fills other roles too

Facts = Mapping[str, Any]  # the body of GET /v1/heads, or an entry of its heads


def word_title(survey: Facts) -> str:
    """Return the title of a survey's grid, model and corpus, in two lines."""
    corpus = survey["corpus"]
    return (
        f"What each head of {survey['model']} does ({survey['weights']})\n"
        f"measured on {corpus['name']}, {corpus['sentences']} sentences ({corpus['digest']})"
    )


def heads_by_layer(survey: Facts) -> list[list[Facts]]:
    """Return the heads of a survey as a list for each layer."""
    rows: dict[int, list[Facts]] = {}
    for head in survey["heads"]:
        rows.setdefault(head["layer"], []).append(head)
    return list(rows.values())


def role_badge(head: Facts) -> str:
    """Return a head's role abbreviated, with a + if the head has other roles too."""
    role: str = head["role"]
    return ROLE_BADGES.get(role, role[:BADGE_LETTERS]) + (MORE_ROLES_MARK if head["also"] else "")


def relation_label(relation: str, verdict: Facts) -> str:
    """Return the name of a relation, with its kind in brackets where that is another word."""
    kind = verdict["kind"]
    return relation if kind in (None, relation) else f"{relation} ({kind})"

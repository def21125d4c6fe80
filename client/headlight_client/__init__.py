"""The Python client: numpy in and out, without torch or Ray.

Read call.py first; docs/client.md shows how it is used.
"""

from headlight_client.answers import (
    Attention,
    Compared,
    Dominance,
    Edges,
    Encoded,
    Item,
    Pairs,
    Score,
    Scored,
    Similar,
    Span,
    Sparse,
    Usage,
    Vectors,
    Why,
)
from headlight_client.call import AsyncClient
from headlight_client.decided import (
    Decision,
    Decisions,
    LeftOut,
    Orders,
    Reason,
    ReasonPart,
    Share,
)
from headlight_client.errors import Fault, HeadlightError, ModelChanged, NoAnswer, RequestRefused
from headlight_client.evidence import Control, Evidence, Highlight, Highlighted
from headlight_client.heads import Heads
from headlight_client.inputs import (
    AttendOptions,
    ComparisonOptions,
    DecideOptions,
    ExplainOptions,
    HighlightOptions,
    Input,
    LabelOptions,
    Options,
    RankOptions,
    ScoreOptions,
)
from headlight_client.judged import Classified, Fit, Judged, Rank, Ranked
from headlight_client.lessons import Steps
from headlight_client.pictures import Picture
from headlight_client.spaces import Checked, Space
from headlight_client.waiting import Client

__all__ = [
    "AsyncClient",
    "AttendOptions",
    "Attention",
    "Checked",
    "Classified",
    "Client",
    "Compared",
    "ComparisonOptions",
    "Control",
    "DecideOptions",
    "Decision",
    "Decisions",
    "Dominance",
    "Edges",
    "Encoded",
    "Evidence",
    "ExplainOptions",
    "Fault",
    "Fit",
    "HeadlightError",
    "Heads",
    "Highlight",
    "HighlightOptions",
    "Highlighted",
    "Input",
    "Item",
    "Judged",
    "LabelOptions",
    "LeftOut",
    "ModelChanged",
    "NoAnswer",
    "Options",
    "Orders",
    "Pairs",
    "Picture",
    "Rank",
    "RankOptions",
    "Ranked",
    "Reason",
    "ReasonPart",
    "RequestRefused",
    "Score",
    "ScoreOptions",
    "Scored",
    "Share",
    "Similar",
    "Space",
    "Span",
    "Sparse",
    "Steps",
    "Usage",
    "Vectors",
    "Why",
]

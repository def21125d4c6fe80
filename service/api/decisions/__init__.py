"""OpenAI's API of decisions: POST /v1/decisions.

Deliberate differences: pictures are refused, and `model` may be left out. Messages are the state as
a list, each as JSON in the order given, so that a cut keeps the end; `prompt_cache_breakpoint` of a
part is left out of it. Source of the request: openai 3.52, `DecisionCreateParams`.
"""

from service.api.decisions.call import ROUTES as ROUTES

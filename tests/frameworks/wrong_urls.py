"""What people read when other clients ask for what is not there: `python wrong_urls.py URL CALL...`

A call is one of CALLS and what follows the URL, such as `openai.embeddings:/v1/embeddings`. It
prints a JSON list of the errors' words. Each client is imported once it is asked, as no
environment has them all.
"""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

TEXT, MODEL = "All is well", "all-MiniLM-L6-v2"
QUIET: dict[str, Any] = {"api_key": "none", "max_retries": 0}


def openai_client(url: str) -> Any:
    """OpenAI's client with this base URL."""
    from openai import OpenAI

    return OpenAI(base_url=url, **QUIET)


def cohere_client(url: str) -> Any:
    """Cohere's client of its second version."""
    import cohere

    return cohere.ClientV2(base_url=url, api_key="none")


def embed_by_cohere(url: str) -> Any:
    """Ask Cohere's POST /v2/embed."""
    how = {"input_type": "search_document", "embedding_types": ["float"]}
    return cohere_client(url).embed(model=MODEL, texts=[TEXT], **how)


def chat_by_cohere(url: str) -> Any:
    """Ask Cohere's POST /v2/chat."""
    return cohere_client(url).chat(model=MODEL, messages=[{"role": "user", "content": TEXT}])


def embed_by_old_cohere(url: str) -> Any:
    """Ask Cohere's POST /v1/embed."""
    import cohere

    return cohere.Client(base_url=url, api_key="none").embed(model=MODEL, texts=[TEXT])


def chat_by_openai(url: str) -> Any:
    """Ask OpenAI's POST /v1/chat/completions."""
    messages = [{"role": "user", "content": TEXT}]
    return openai_client(url).chat.completions.create(model=MODEL, messages=messages)


def embed_by_hub(url: str) -> Any:
    """Ask the URL itself, as Hugging Face's client does."""
    from huggingface_hub import InferenceClient

    return InferenceClient(url).feature_extraction(TEXT)


def embed_by_voyage(url: str) -> Any:
    """Ask Voyage's POST /v1/embeddings."""
    import voyageai

    return voyageai.Client(api_key="none", base_url=url, max_retries=0).embed([TEXT], model=MODEL)


def describe_by_triton(url: str) -> Any:
    """Ask the Open Inference Protocol's GET /v2/models/{model}."""
    from tritonclient.http import InferenceServerClient

    client = InferenceServerClient(url.removeprefix("http://"))
    try:
        return client.get_model_metadata(MODEL)
    finally:
        client.close()


CALLS: dict[str, Callable[[str], Any]] = {
    "openai.embeddings": lambda url: openai_client(url).embeddings.create(model=MODEL, input=TEXT),
    "openai.long": lambda url: openai_client(url).embeddings.create(model=MODEL, input=TEXT * 999),
    "openai.models": lambda url: openai_client(url).models.list().data,
    "openai.chat": chat_by_openai,
    "cohere.embed": embed_by_cohere,
    "cohere.chat": chat_by_cohere,
    "cohere.v1": embed_by_old_cohere,
    "huggingface_hub": embed_by_hub,
    "voyageai": embed_by_voyage,
    "tritonclient": describe_by_triton,
}


def read_errors(url: str, calls: Sequence[str]) -> list[str]:
    """What each call's error says to people; "no error" where it was answered."""
    said = []
    for call in calls:
        name, _, path = call.partition(":")
        try:
            CALLS[name](url + path)
            said.append("no error")
        except Exception as error:  # of whichever class the client has
            said.append(str(error))
    return said


if __name__ == "__main__":
    print(json.dumps(read_errors(sys.argv[1], sys.argv[2:])))

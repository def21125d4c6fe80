"""Fields by which requests of some embedding or ranking API change their answer.

A route of another API follows such a field or refuses it by name, whichever API it is of: to
ignore it would be to answer other vectors, numbers or scores than were asked for. Sources: the
references of OpenAI, Voyage, Cohere, Jina, Mistral, NVIDIA NIM, Together, Gemini, Bedrock's Titan,
DashScope, Nomic and Mixedbread; the servers TEI, vLLM, Infinity, llama.cpp and Ollama; the encode
methods of sentence-transformers and FlagEmbedding; TypeSafe's API of decisions and Laya's server.
"""

CHANGING_FIELDS = frozenset(
    (
        # what is read, and what goes before each text
        *("assets", "image", "images", "lang", "lang_guess", "messages", "modality"),
        *("input_type", "instruct", "instruction", "prefix", "prompt", "prompt_name", "task"),
        *("taskType", "task_type", "text_type"),
        # how much of it is read
        *("add_special_tokens", "autoTruncate", "auto_truncate", "late_chunking", "long_text_mode"),
        *("head_max_len", "max_chunks_per_doc", "max_len", "max_length", "max_tokens"),
        *("max_tokens_per_doc",),
        *("max_tokens_per_text", "overlap_tokens", "truncate", "truncate_prompt_tokens"),
        *("truncation", "truncation_direction", "truncation_side"),
        # what the vectors are
        *("dimension", "dimensionality", "dimensions", "embd_normalize", "normalize"),
        *("normalize_embeddings", "normalized", "outputDimensionality", "output_dimension"),
        *("output_dimensionality", "pooling", "pooling_mode", "pooling_type", "return_multivector"),
        *("truncate_dim", "use_activation"),
        # how their numbers are written
        *("dtype", "embed_dtype", "embeddingTypes", "embedding_type", "embedding_types"),
        *("encoding_format", "encoding_type", "endianness", "output_dtype", "output_type"),
        *("output_value", "precision"),
        # which scores are answered, and what comes with them
        *(
            "function_to_apply",
            "min_confidence",
            "rank_fields",
            "raw_scores",
            "return_documents",
            "return_text",
        ),
        *("top_k", "top_n"),
    )
)

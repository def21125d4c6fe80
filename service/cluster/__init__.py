"""How Ray and HAProxy are told to carry requests."""

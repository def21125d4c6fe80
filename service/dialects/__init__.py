"""One file per API that clients speak: parse into the native request, format the native answer.

A dialect has two functions and knows nothing of HTTP's server side:

    parse(body, headers)        a Call: the native request, and how to write its answer
    problem(refused, id)        a refusal as that API's clients know it
"""

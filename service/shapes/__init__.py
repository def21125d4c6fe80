"""What travels through the service: each shape once, and which stage fills each field.

    Call    an API's parser makes it of a body: what is asked, and how the answer is written
    Ask     what is asked: the wire class of a question, checked in form alone
    Custom  the same parser says how that API reads and answers, where not as our own
    Side    a question says which texts are read alike, how, and what is wanted of each
    Work    the reader makes one of each text; a lane gives it its result
    Step    a question says which works run together, and what follows from them
    Job     admission puts a step's works into the queue; a Batch has those that run together
    Price   a question says what its answer weighs
    Answer  what is answered, an AnswerItem for each input, before it is written

Only work.py, step.py and task.py import torch: the chart and the API document need the wire alone.
"""

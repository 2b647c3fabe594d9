"""An HTTP server with SGLang's API in front of a `rollout.service`.

`app` holds the routes. A route validates its body with `protocol`, makes jobs
in `native` (/generate) or `openai` (/v1), and submits them through `host`,
which owns the service; `samples` carries the sampled tokens back to the event
loop.
"""

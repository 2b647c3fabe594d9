"""An HTTP server with SGLang's API in front of a `rollout.service`.

`app` holds the routes. A route validates the request body with `protocol`,
makes jobs in `native` (/generate) or `openai` (/v1), and submits them through
`host`, which owns the service; `samples` passes the sampled tokens back to the
event loop.
"""

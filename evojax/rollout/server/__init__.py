"""An HTTP server that speaks SGLang's contract over a `rollout.service`.

`app` holds the routes. A route checks its body with `protocol`, makes jobs in
`native` (/generate) or `openai` (/v1), and submits them through `host`, which
owns the service; `samples` carries what it samples back to the event loop.
"""

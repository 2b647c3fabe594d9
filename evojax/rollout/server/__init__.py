"""An HTTP server that speaks SGLang's contract over a `rollout.service`.

`host` runs requests against the service, `native` is /generate and the
endpoints of trainers, `openai` is /v1, `app` puts them together.
"""

"""The durable store: files, directories and items of work that survive a kill, a full disk and a failing service.

`files` writes files atomically and locks them; `items` processes many items and continues where a killed run ended;
`retries` tries an item again when a service fails.
"""

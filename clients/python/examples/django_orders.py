"""An orders service with Django: the claim joins Django's own transaction, so the ORM works as ever.

    pip install pgonce django "psycopg[binary]"
    pgonce migrate up                                      # installs the schema
    DATABASE_URL=postgresql://localhost/shop python django_orders.py runserver

    curl -i localhost:8000/orders -H 'Idempotency-Key: 0190f5a2' -d '{"item": "book", "qty": 2}'
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.db import connection, models, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

import pgonce

address = urlsplit(os.environ.get("DATABASE_URL", "postgresql://localhost/shop"))
settings.configure(
    DEBUG=False,
    SECRET_KEY="only for this example",
    ALLOWED_HOSTS=["localhost", "127.0.0.1", "testserver"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=[],
    MIDDLEWARE=[],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": address.path.lstrip("/"),
            "USER": address.username or "",
            "HOST": address.hostname or "",
            "PORT": address.port or "",
        }
    },
)
django.setup()


class Order(models.Model):
    item = models.TextField()
    qty = models.IntegerField()

    class Meta:
        app_label = "orders"
        db_table = "django_order"


STATUS = {
    pgonce.Conflict: 422,
    pgonce.Gone: 410,
    pgonce.PermanentFailure: 422,
    pgonce.Busy: 409,
    pgonce.Invalid: 400,
}


def orders(request: HttpRequest) -> JsonResponse:
    command = json.loads(request.body)
    # Validation comes first: it does not burn the key.
    if command.get("qty", 0) < 1:
        return JsonResponse({"error": "qty must be at least 1"}, status=400)
    key = request.headers.get("Idempotency-Key", "")
    try:
        # A deadlock, a serialization failure or a lost connection runs the transaction again. If the
        # commit had worked after all, the claim answers with what it stored.
        tx = pgonce.transact(lambda: create(key, command))
    except pgonce.Error as error:
        status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 503)
        return JsonResponse({"error": error.message, "code": error.code}, status=status)
    return JsonResponse(tx.answer, status=201, headers={"Idempotent-Replayed": str(tx.replayed).lower()})


def create(key: str, command: dict[str, Any]) -> pgonce.Tx:
    """The order, its event and the answer commit together, or none of them does."""
    connection.close_if_unusable_or_obsolete()
    with transaction.atomic():
        with pgonce.join(connection.connection, "orders.create", key, command) as tx:
            if tx.is_new:
                order = Order.objects.create(item=command["item"], qty=command["qty"])
                tx.publish("orders", "order.created", command, subject=str(order.pk))
                tx.succeed({"id": order.pk}, reference=("order", order.pk))
    return tx


urlpatterns = [path("orders", orders)]

if __name__ == "__main__":
    from django.core.management import execute_from_command_line

    with connection.schema_editor() as editor:
        if Order._meta.db_table not in connection.introspection.table_names():
            editor.create_model(Order)
    execute_from_command_line([sys.argv[0], *sys.argv[1:], "--noreload"])

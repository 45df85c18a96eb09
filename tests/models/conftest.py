"""What tests of exported models have in common."""

from exports import keep_translations

keep_translations()

"""The texts whose log-probabilities are compared: our own words, of the kinds that models serve.

Changing a letter makes captures taken before incomparable; a capture knows by its tokens.
"""

# Prose stands in long lines here, and Chinese has commas of its own.
# ruff: noqa: E501, RUF001

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

TEXTS: Mapping[str, str] = {
    "letter": """\
Dear Ingrid, the boat came in on Tuesday, two days late and with salt up to the second deck. Nobody \
was hurt. The captain says that the wind turned north before they had passed the lighthouse, and \
that he would rather lose two days than a mast. I have put your crates into the dry store behind \
the office. Three of them are damp at the corners, but the lids are sound and I did not open them. \
If you want them sent on before the roads freeze, write by the end of the week; after that I can \
promise nothing until March. My sister asks after your mother, and wants to know whether the apple \
trees were moved in time.""",
    "python": '''\
def merge_intervals(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join intervals that touch or overlap; the result is sorted and has none that do."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if start > end:
            raise ValueError(f"an interval ends before it starts: {start} > {end}")
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


assert merge_intervals([(5, 8), (1, 3), (2, 4)]) == [(1, 4), (5, 8)]
assert merge_intervals([]) == []
''',
    "json": """\
{
  "order": "2291-B",
  "placed": "2026-03-14T09:26:53Z",
  "customer": {"id": 40177, "name": "Halvorsen Boatyard", "country": "NO"},
  "lines": [
    {"sku": "ROPE-12-BLUE", "quantity": 40, "unit": "m", "price": {"amount": 2.35, "currency": "EUR"}},
    {"sku": "CLEAT-S-200", "quantity": 8, "unit": "pcs", "price": {"amount": 17.9, "currency": "EUR"}},
    {"sku": "PAINT-HULL-W", "quantity": 3, "unit": "l", "price": {"amount": 31.0, "currency": "EUR"}}
  ],
  "total": {"amount": 330.2, "currency": "EUR"},
  "notes": null,
  "delivered": false
}
""",
    "maths": """\
Problem. A rectangle has a perimeter of 46 cm, and its diagonal is 17 cm long. Find its area.
Solution. Let the sides be a and b. From the perimeter, a + b = 23. From the diagonal, by the theorem \
of Pythagoras, a^2 + b^2 = 289. Squaring the first equation gives a^2 + 2ab + b^2 = 529. Subtracting \
the second leaves 2ab = 240, so ab = 120. The area is 120 square centimetres. As a check, the sides \
are the roots of x^2 - 23x + 120 = 0, which factors as (x - 8)(x - 15) = 0; so a = 8 and b = 15, and \
indeed 64 + 225 = 289.
""",
    "dialogue": """\
User: My bread rises well and then falls flat in the oven. What am I doing wrong?
Assistant: Most likely it has risen for too long. When the dough has used up its strength before it \
goes into the oven, the last push of gas tears it instead of lifting it. Press it with a finger: if \
the dent stays, it is over; if it comes back slowly, it is ready.
User: It is warm in my kitchen, about 28 degrees. Does that matter?
Assistant: Very much. At 28 degrees yeast works about twice as fast as at 20, so halve the time, or \
use colder water. You can also let it rise in the refrigerator overnight, which improves the taste.
""",
    "german": """\
Am Montag blieb die Werkstatt geschlossen, weil der Meister mit dem Zug nach Ulm gefahren war, um \
dort eine gebrauchte Drehbank anzusehen. Sie sollte zwölfhundert Kilogramm wiegen und noch aus dem \
Jahr 1962 stammen. Als er ankam, stand sie im Regen unter einer Plane, und der Verkäufer behauptete, \
das mache ihr nichts aus. Der Meister strich mit dem Finger über das Bett, fand Rost in jeder zweiten \
Führung und fuhr mit dem nächsten Zug wieder nach Hause. Am Dienstag war alles wie immer.""",
    "explanation": """\
A heat pump moves warmth from a cold place to a warm one. It does so by letting a liquid boil at \
low pressure, where boiling needs little heat, and by pressing the vapour until it turns liquid \
again at high pressure, where it gives that heat away. The work that the compressor puts in is \
smaller than the heat that is moved, which is why one unit of electricity can bring three or four \
units of warmth into a house. The colder it is outside, the further the pressure has to be raised, \
and the less is gained. Below a certain temperature the machine must also melt the ice that forms \
on its own outer coil, and for a few minutes it then works backwards.""",
    "c": """\
/* Count the set bits of every byte in a buffer; the table is filled on first use. */
#include <stddef.h>
#include <stdint.h>

static uint8_t bits_of[256];

static void fill_table(void) {
    for (unsigned value = 1; value < 256; ++value)
        bits_of[value] = (uint8_t)((value & 1u) + bits_of[value >> 1]);
}

size_t count_bits(const uint8_t *buffer, size_t length) {
    size_t total = 0;
    if (bits_of[1] == 0)
        fill_table();
    for (size_t at = 0; at < length; ++at)
        total += bits_of[buffer[at]];
    return total;
}
""",
    "shell": """\
$ df -h /srv
Filesystem      Size  Used Avail Use% Mounted on
/dev/nvme1n1p2  3.6T  3.3T  142G  96% /srv
$ du -xsh /srv/* | sort -h | tail -4
38G     /srv/mail
212G    /srv/photos
1.1T    /srv/backup
1.9T    /srv/models
$ find /srv/models -name '*.incomplete' -mtime +7 -print -delete
/srv/models/cache/blobs/4f0c1e77.incomplete
/srv/models/cache/blobs/b93a5520.incomplete
$ df -h /srv | awk 'NR == 2 {print $5}'
91%
""",
    "chinese": """\
早上六点，码头上已经有人在等船了。雾很大，看不见对岸的灯塔，只能听见远处的汽笛声。卖茶的老人把炉子\
搬到墙边，说今天的第一班船至少要晚半个小时。没有人着急，大家围着炉子喝茶，谈论昨天的鱼价和下个星期的\
天气。七点一刻，雾忽然散了，船像一直就在那里一样，静静地靠在岸边。""",
    "table": """\
| station  | line | opened | platforms | passengers a day |
|----------|------|-------:|----------:|-----------------:|
| Harbour  | 1    |   1911 |         2 |           14 200 |
| Old Mill | 1    |   1911 |         2 |            3 900 |
| Museum   | 1, 3 |   1934 |         4 |           21 750 |
| Airport  | 3    |   1988 |         3 |           48 300 |

The busiest station is Airport with 48 300 passengers a day, more than the other three together \
(39 850). The oldest ones, Harbour and Old Mill, were opened in the same year, 1911.
""",
    "sql": """\
-- Readers who borrowed more than five books in a year and returned at least one of them late.
SELECT r.reader_id, r.name, COUNT(*) AS loans,
       SUM(CASE WHEN l.returned_on > l.due_on THEN 1 ELSE 0 END) AS late
FROM reader AS r
JOIN loan AS l ON l.reader_id = r.reader_id
WHERE l.taken_on >= DATE '2025-01-01' AND l.taken_on < DATE '2026-01-01'
GROUP BY r.reader_id, r.name
HAVING COUNT(*) > 5 AND SUM(CASE WHEN l.returned_on > l.due_on THEN 1 ELSE 0 END) >= 1
ORDER BY late DESC, r.name;
""",
}
"""By name; a shorter capture takes the first ones, so each stretch mixes the kinds."""

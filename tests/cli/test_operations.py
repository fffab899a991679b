"""`foretell reliability`, `checkpoint`, `cost` and `carbon`: golden facts, the object, exit codes, bad input."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from foretell.cli import carbon, checkpoint, cost, reliability

FLEET = ("--system", "dgx-h100", "--nodes", "8")
VERBS: dict[str, tuple[str, ...]] = {
    "reliability": ("reliability", *FLEET),
    "checkpoint": ("checkpoint", "llama-3-8b"),
    "cost": ("cost", *FLEET),
    "carbon": ("carbon", *FLEET),
}
COMMANDS: dict[str, Any] = {
    "reliability": reliability.command,
    "checkpoint": checkpoint.command,
    "cost": cost.command,
    "carbon": carbon.command,
}
UNITS = {
    "checkpoint_time": "checkpoint_time_s",
    "interval": "interval_s",
    "lag": "lag_s",
    "recovery_time": "recovery_time_s",
    "mtbf": "mtbf_s",
    "repair_time": "repair_time_s",
    "writer_bandwidth": "writer_bandwidth_bytes_per_s",
    "filesystem": "filesystem_bytes_per_s",
    "read_bandwidth": "read_bandwidth_bytes_per_s",
    "node_price": "node_price_usd",
    "network_price": "network_price_usd",
    "life": "life_years",
    "staff": "staff_usd_per_year",
    "colocation": "colocation_usd_per_kw_month",
    "kwh_price": "kwh_price_usd",
    "node_power": "node_power_w",
    "price": "price_usd_per_device_hour",
    "carbon_intensity": "carbon_intensity_g_per_kwh",
    "wue": "wue_l_per_kwh",
}


# -- all four ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_the_screen_the_line_and_the_object(cli: Any, verb: str) -> None:
    screen, line = cli(*VERBS[verb]), cli(*VERBS[verb], "--quiet")
    assert (screen.code, screen.err, line.code) == (0, "", 0)
    assert line.out.count("\n") == 1
    assert screen.out.splitlines()[0] == line.out.rstrip("\n")
    assert max(len(text) for text in screen.out.splitlines()) <= 80
    document = cli(*VERBS[verb], "--json").document
    assert document["command"] == verb
    assert document["result"]["assumed"]
    assert "  assumed: " in screen.out
    assert document["sources"]
    assert {"notes", "sources"}.isdisjoint(document["result"])


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_the_help_is_echoed_in_the_inputs(cli: Any, verb: str) -> None:
    inputs = cli(*VERBS[verb], "--json").document["inputs"]
    assert {UNITS.get(p.name, p.name) for p in COMMANDS[verb].params} == {*inputs, "json", "quiet"}


@pytest.mark.parametrize("verb", ["reliability", "cost", "carbon"])
def test_the_same_machines_by_either_way(cli: Any, verb: str) -> None:
    ways = (FLEET, ("--system", "dgx-h100", "--gpus", "64"), ("--gpu", "h100", "--gpus", "64"), ("--gpu", "h100", "--nodes", "8"))
    for way in ways:
        inputs = cli(verb, *way, "--json").document["inputs"]
        assert (inputs["nodes"], inputs["gpus"], inputs["gpus_per_node"], inputs["days"]) == (8, 64, 8, 30)
    few = cli(verb, "--gpu", "h100", "--gpus", "4", "--node-price" if verb == "cost" else "--days", "100", "--json").document
    assert (few["inputs"]["nodes"], few["inputs"]["gpus_per_node"]) == (1, 4)
    wide = cli(verb, "--gpu", "h100", "--gpus", "64", "--gpus-per-node", "4", "--hours", "48", "--json").document
    assert (wide["inputs"]["nodes"], wide["inputs"]["days"]) == (16, 2)
    assert "nodes of 8 accelerators" in cli(verb, "--gpu", "h100", "--json").result["assumed"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("cost --system dgx-h100 --rent --kwh-price 0.1 --pue 1.2 --region us-iowa", "--region, --kwh-price, --pue"),
        ("cost --system dgx-h100 --price 2 --price-kind spot", "--price-kind"),
        ("reliability --system dgx-h100 --repair-time 24h", ""),
        ("checkpoint llama-3-8b --zero 1", "--zero"),
        ("carbon --system dgx-h100 --pue 1.1 --wue 0.1 --operator google", "--operator"),
        ("carbon --system dgx-h100 --utilisation 100%", ""),
    ],
)
def test_an_option_without_effect_is_named(cli: Any, arguments: str, named: str) -> None:
    notes = [note for note in cli(*arguments.split(), "--json").document["notes"] if "without effect" in note]
    assert notes == ([f"given, and without effect on this answer: {named}"] if named else [])


def test_they_import_no_numpy_nor_pint() -> None:
    for arguments in VERBS.values():
        code = (
            f"import sys; from foretell.cli import main; main({[*arguments, '--quiet']!r});"
            "print(sorted({'numpy','pint','torch'} & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"


# -- reliability ---------------------------------------------------------------------------------------------


def test_the_run_of_llama_3(cli: Any) -> None:
    """54 days on 16,384 H100: 419 unexpected interruptions, one in 3.09 h, over 90 % of effective training time (their paper)."""
    given = "--gpu h100 --gpus 16384 --days 54 --failure-rate 3.789 --checkpoint-time 5s --recovery-time 10min"
    result = cli("reliability", *given.split(), "--json").result
    assert result["expected_failures"] == pytest.approx(419, rel=1e-3)
    assert result["fleet_mtbf_s"] / 3600 == pytest.approx(54 * 24 / 419, rel=1e-3)
    assert result["goodput_ratio"] > 0.9
    assert result["young_interval_s"] == pytest.approx((2 * 5 * result["fleet_mtbf_s"]) ** 0.5)
    assert sum(result["losses"].values()) == pytest.approx(1)
    assert result["assumed"] == ["nodes of 8 accelerators"]


def test_the_curve_holds_the_answer(cli: Any) -> None:
    result = cli("reliability", "--system", "dgx-h100", "--nodes", "64", "--json").result
    rows = {row["nodes"]: row for row in result["curve"]}
    assert list(rows) == [8, 16, 32, 64, 128, 256, 512]
    assert rows[64]["goodput_ratio"] == pytest.approx(result["goodput_ratio"])
    assert rows[8]["fleet_mtbf_s"] == pytest.approx(64 * rows[512]["fleet_mtbf_s"])
    assert [row["nodes"] for row in cli("reliability", "--system", "dgx-h100", "--json").result["curve"]] == [1, 2, 4, 8]


def test_what_is_known_of_the_failures(cli: Any) -> None:
    base = ("reliability", *FLEET, "--json")
    usual = cli(*base).result
    low, high = usual["fleet_mtbf_interval_s"]
    assert low < usual["fleet_mtbf_s"] < high
    for spelled in ("2-8", "2,8", "2 - 8"):
        given = cli(*base, "--failure-rate", spelled).result
        assert given["failures_per_1000_node_days_interval"] == [2, 8]
        assert given["failures_per_1000_node_days"] == pytest.approx(4)
    whole = cli(*base, "--mtbf", "12", "--interval", "30min").document
    assert (whole["result"]["fleet_mtbf_s"], whole["inputs"]["interval_s"]) == (12 * 3600, 1800)
    assert whole["result"]["goodput_ratio"] < cli(*base, "--mtbf", "0.5d").result["goodput_ratio"]
    assert cli(*base, "--record", "rsc-1").result["failures_per_1000_node_days"] == 6.5
    assert cli(*base, "--causes", "hardware-only").document["inputs"]["causes"] == "hardware only"
    spares = cli(*base, "--spares", "1", "--repair-time", "24h").result
    assert 0.9 < spares["enough_nodes_probability"] < 1


@pytest.mark.parametrize("given", ["--checkpoint-time 4h", "--mtbf 30s", "--interval 4000h"])
def test_a_job_that_makes_no_progress_is_1(cli: Any, given: str) -> None:
    ran = cli("reliability", "--system", "dgx-h100", "--nodes", "2048", *given.split())
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.startswith("NO PROGRESS")
    ran = cli("reliability", "--system", "dgx-h100", "--nodes", "2048", *given.split(), "--json")
    assert (ran.code, ran.result["feasible"]) == (1, False)


# -- checkpoint ----------------------------------------------------------------------------------------------


def test_fourteen_bytes_a_parameter(cli: Any) -> None:
    """Mixed precision with Adam: 2 + 4 + 8 bytes of 8.03 B parameters; 64 writers of 1 GB/s take 1.76 s."""
    result = cli("checkpoint", "llama-3-8b", "--writers", "64", "--writer-bandwidth", "1GB/s", "--json").result
    assert result["checkpoint_size_bytes"] == 14 * 8030261248
    assert result["breakdown_bytes"]["optimizer_state"] == 8 * 8030261248
    assert result["write_time_s"] == pytest.approx(112.42 / 64, rel=1e-4)
    assert (result["files"], result["disk_bytes"]) == (64, 2 * result["checkpoint_size_bytes"])
    assert result["mfu_penalty_pct"] == pytest.approx(100 * 1.7566 / (4 * 3600 + 1.7566), rel=1e-3)
    screen = cli("checkpoint", "llama-3-8b").out
    assert "112 GB" in screen
    assert "104.70 GiB" in screen


def test_three_ways_to_save(cli: Any) -> None:
    base = ("checkpoint", "llama-3-8b", "--writers", "8", "--interval", "1", "--json")
    ways = {mode: cli(*base, "--mode", mode) for mode in ("sync", "async", "memory")}
    assert ways["async"].result["blocking_time_s"] < ways["sync"].result["blocking_time_s"]
    assert ways["sync"].result["durability_lag_s"] == 0
    assert ways["async"].result["durability_lag_s"] > 0
    assert ways["async"].document["inputs"]["interval_s"] == 3600
    assert any("lost with them" in note for note in ways["memory"].document["notes"])
    lora = cli(*base, "--lora-rank", "16").result
    assert lora["checkpoint_size_bytes"] < ways["sync"].result["checkpoint_size_bytes"] / 20
    limited = cli(*base, "--filesystem", "4").result
    assert limited["write_time_s"] == pytest.approx(cli(*base, "--filesystem", "4GB/s").result["write_time_s"])
    assert limited["write_time_s"] == pytest.approx(112.42 / 4, rel=1e-4)


@pytest.mark.parametrize(
    ("given", "word"),
    [("--writer-bandwidth 0.1GB/s", "STALLS"), ("--mode async --writer-bandwidth 5MB/s --interval 1h", "TOO SLOW")],
)
def test_a_save_that_takes_too_long_is_1(cli: Any, given: str, word: str) -> None:
    ran = cli("checkpoint", "llama-3-8b", *given.split())
    assert (ran.code, ran.out.split("  ")[0]) == (1, word)


# -- cost ----------------------------------------------------------------------------------------------------


def test_the_parts_of_owning(cli: Any) -> None:
    """A node of 320,000 USD over four years without interest: 80,000 a year, and 5 % for maintenance."""
    given = "--days 365 --kwh-price 0.1 --node-price 320000 --life 4 --discount 0 --pue 1.2"
    document = cli("cost", "--system", "dgx-h100", *given.split(), "--json").document
    result = document["result"]
    assert (result["capex_usd"], result["opex_maintenance_usd"]) == (80_000, 16_000)
    assert result["opex_energy_usd"] == pytest.approx(0.1 * result["total_energy_kwh"])
    assert sum(result["breakdown_usd"].values()) == pytest.approx(result["tco_usd"])
    assert result["usd_per_device_hour"] == pytest.approx(result["tco_usd"] / (8 * 8760))
    assert document["inputs"]["kwh_price_usd"] == 0.1


def test_rent_is_a_price_times_hours(cli: Any) -> None:
    given = "--gpu h100 --gpus 16 --hours 100 --rent --price 2.5 --tokens-per-second 10k"
    document = cli("cost", *given.split(), "--json").document
    result = document["result"]
    assert (result["mode"], result["tco_usd"], result["price_date"]) == ("rent", 2.5 * 16 * 100, None)
    assert result["usd_per_million_tokens"] == pytest.approx(2.5 * 16 / 3600 / 10_000 * 1e6)
    assert document["inputs"]["own"] is False
    half = cli("cost", *given.split(), "--utilisation", "50%", "--json").result
    assert half["usd_per_device_hour"] == 5


def test_own_and_rent_cost_the_same_where_they_break_even(cli: Any) -> None:
    given = "--node-price 300000 --price 3 --days 365 --kwh-price 0.1 --node-power 8kW --pue 1.2"
    result = cli("cost", "--system", "dgx-h100", *given.split(), "--json").result
    even = result["break_even_utilisation"]
    assert 0 < even < 1
    assert "owning is cheaper" in cli("cost", "--system", "dgx-h100", *given.split()).out
    dear = cli("cost", "--system", "dgx-h100", "--node-price", "3000000", "--price", "1")
    assert "at no use of them" in dear.out


def test_prices_have_dates(cli: Any) -> None:
    document = cli("cost", *FLEET, "--json").document
    assert document["result"]["price_date"].startswith("20")
    assert any(source.startswith("price to buy: ") for source in document["sources"])
    low, high = document["result"]["rent_interval_usd"]
    assert low < document["result"]["rent_usd"] < high


# -- carbon --------------------------------------------------------------------------------------------------


def test_from_power_to_carbon(cli: Any) -> None:
    """Eight nodes of 8 kW for 30 days: 46,080 kWh, 10 % more in the building, 400 g each, 0.2 L of water."""
    given = "--node-power 8kW --pue 1.1 --carbon-intensity 400 --wue 0.2"
    document = cli("carbon", *FLEET, *given.split(), "--json").document
    result = document["result"]
    assert result["it_energy_kwh"] == pytest.approx(8 * 8 * 720)
    assert result["total_energy_kwh"] == pytest.approx(1.1 * 46_080)
    assert result["operational_carbon_kg"] == pytest.approx(0.4 * 1.1 * 46_080)
    assert result["water_usage_liters"] == pytest.approx(0.2 * 46_080)
    assert result["carbon_footprint_kg"] == pytest.approx(result["operational_carbon_kg"] + result["embodied_carbon_kg"])
    assert document["inputs"]["boundary"] == "operational"
    assert result["total_energy_interval_kwh"] == [result["total_energy_kwh"]] * 2


def test_boundaries_and_operators_stay_apart(cli: Any) -> None:
    base = ("carbon", *FLEET, "--region", "france", "--json")
    life = cli(*base, "--boundary", "lifecycle").result
    assert life["boundary"] == "lifecycle"
    google = cli("carbon", *FLEET, "--region", "us-central1", "--operator", "google", "--json").result
    usual = cli("carbon", *FLEET, "--region", "us-central1", "--json").result
    assert (google["pue"], usual["pue"]) == (1.11, 1.25)
    assert usual["region_name"] == "Iowa, United States"
    assert usual["off_site_water_liters"] > 0
    idle = cli("carbon", *FLEET, "--utilisation", "0", "--json").result
    assert idle["it_energy_kwh"] < cli("carbon", *FLEET, "--regime", "decode", "--json").result["it_energy_kwh"]


# -- input that cannot be used -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "field", "says"),
    [
        ("reliability", "system", "--system dgx-h100"),
        ("reliability --gpu h100 --gpus 12", "gpus", "8, 16, 24"),
        ("reliability --gpu h100 --gpus 16 --nodes 3 --gpus-per-node 8", "gpus", "is not 3 nodes x 8"),
        ("reliability --system dgx-h100 --gpu a100", "gpu", "holds h100"),
        ("reliability --system dgx-h100 --gpus-per-node 4", "gpus_per_node", "holds: 8"),
        ("reliability --system dgx-h10", "system", "dgx-h100"),
        ("reliability --gpu h100 --days 0", "days", "above 0"),
        ("reliability --gpu h100 --days -3", "days", "above 0"),
        ("reliability --gpu h100 --hours 2weeks", "hours", "number of hours"),
        ("reliability --gpu h100 --hours 24 --days 1", "hours", "Leave out one"),
        ("reliability --gpu h100 --failure-rate 0", "failure_rate", "LOW-HIGH"),
        ("reliability --gpu h100 --failure-rate 6-2", "failure_rate", "wrong order"),
        ("reliability --gpu h100 --failure-rate -4", "failure_rate", "above 0"),
        ("reliability --gpu h100 --failure-rate 3 --record rsc-1", "record", "no use"),
        ("reliability --gpu h100 --mtbf 3h --failure-rate 3", "failure_rate", "no use"),
        ("reliability --gpu h100 --mtbf -3", "mtbf", "above 0"),
        ("reliability --gpu h100 --mtbf 3GB", "mtbf", "a time"),
        ("reliability --gpu h100 --checkpoint-time 0", "checkpoint_time", "above 0"),
        ("reliability --gpu h100 --checkpoint-time -5s", "checkpoint_time", "not negative"),
        ("reliability --gpu h100 --interval 1min --lag 5min", "checkpoint_interval_s", "300 s"),
        ("reliability --gpu h100 --spares 2", "spares", "--repair-time"),
        ("reliability --gpu h100 --causes hardware", "causes", "Did you mean hardware only?"),
        ("reliability --gpu h100 --record rsc1x", "failure", "catalog list failures"),
        ("reliability --gpu h100 --weibull-shape 0", "weibull_shape", "0.05 to 20"),
        ("checkpoint llama-3-8b --mode asinc", "mode", "Did you mean async?"),
        ("checkpoint llama-3-8b --interval 0", "interval", "above 0"),
        ("checkpoint llama-3-8b --writers 0", "writers", "1 to"),
        ("checkpoint llama-3-8b --writer-bandwidth 2", "writer_bandwidth", "2GB/s"),
        ("checkpoint llama-3-8b --writer-bandwidth 2GB", "writer_bandwidth", "not a data rate"),
        ("checkpoint llama-3-8b --filesystem 0", "filesystem", "GB (1e9 bytes)"),
        ("checkpoint llama-3-8b --format shard", "format", "sharded"),
        ("checkpoint llama-3-8b --precision bf61", "precision", "bf16"),
        ("checkpoint lama-3-8b", "model", "llama-3-8b"),
        ("checkpoint llama-3-8b --writer-bandwith 2GB/s", "--writer-bandwith", "--writer-bandwidth"),
        ("cost --gpu tpu-v5p --gpus 8", "price", "--node-price"),
        ("cost --gpu cs-3 --gpus 8 --rent", "price", "--price"),
        ("cost --system dgx-h100 --price 0", "price", "above 0"),
        ("cost --system dgx-h100 --price h100=2.5", "price", "a number"),
        ("cost --system dgx-h100 --node-price -1", "node_price", "above 0"),
        ("cost --system dgx-h100 --kwh-price -0.1", "kwh_price", "0 to 1000"),
        ("cost --system dgx-h100 --pue 0.9", "pue", "1 to 10"),
        ("cost --system dgx-h100 --discount 8", "discount", "0% to 100%"),
        ("cost --system dgx-h100 --utilisation 0", "utilisation", "above 0%"),
        ("cost --system dgx-h100 --life 0", "life", "0.1 to 100"),
        ("cost --system dgx-h100 --price-kind spto", "price_kind", "Did you mean spot?"),
        ("cost --system dgx-h100 --rent --provider runpodd", "provider", "runpod"),
        ("cost --system dgx-h100 --region us-iow", "grid", "us-iowa"),
        ("carbon --system dgx-h100 --region us-iow", "grid", "us-iowa"),
        ("carbon --system dgx-h100 --pue 0.99", "pue", "1 to 10"),
        ("carbon --system dgx-h100 --pue 120%", "pue", "not a plain number"),
        ("carbon --system dgx-h100 --carbon-intensity 400g", "carbon_intensity", "grams of CO2-equivalent"),
        ("carbon --system dgx-h100 --wue -1", "wue", "litres"),
        ("carbon --system dgx-h100 --utilisation 120%", "utilisation", "0% to 100%"),
        ("carbon --system dgx-h100 --node-power 8kWh", "node_power", "not a power"),
        ("carbon --system dgx-h100 --node-power 0", "node_power", "above 0"),
        ("carbon --system dgx-h100 --regime trainig", "regime", "Did you mean training?"),
        ("carbon --system dgx-h100 --boundary lifecycl", "boundary", "Did you mean lifecycle?"),
        ("carbon --system dgx-h100 --region us-iowa --boundary market", "boundary", "is not known of"),
        ("carbon --system dgx-h100 --operator gogle", "operator", "Did you mean google?"),
        ("carbon --gpu tpu-v5p", "tdp_w", "--node-power"),
    ],
)
def test_what_cannot_be_used(cli: Any, arguments: str, field: str, says: str) -> None:
    ran = cli(*arguments.split(), "--json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.error["field"] == field
    assert says in ran.error["message"]


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ("reliability --gpu h100 --interval 1min --lag 5min", "option --interval"),
        ("reliability --gpu h100 --record nobody", "option --record"),
        ("carbon --gpu h100 --region nowhere", "option --region"),
        ("carbon --gpu h100 --pue 0.5", "option --pue"),
        ("cost --gpu h100 --node-price 0", "option --node-price"),
    ],
)
def test_a_value_is_traced_to_its_option(cli: Any, arguments: str, where: str) -> None:
    assert cli(*arguments.split(), "--json").error["where"] == where


@pytest.mark.parametrize(
    "text", ["", " ", "a\nb", "\x1b[31mred", "x" * 9_000, "\x00", "nan", "inf", "-1", "1e400", "[1]", "9" * 5000]
)
def test_odd_text(cli: Any, text: str) -> None:
    skipped = {"model", "json", "quiet", "own"}
    for verb, command in COMMANDS.items():
        for parameter in command.params:
            if parameter.name in skipped:
                continue
            ran = cli(*VERBS[verb], parameter.opts[0], text, "--json")
            assert (ran.code, ran.out) == (2, ""), (verb, parameter.opts[0])
            assert len(ran.error["message"]) < 1500


OPTIONS = {
    "reliability": """
--nodes 4 | --days 3 | --hours 9 | --checkpoint-time 90s | --interval 3h | --lag 30s | --recovery-time 3min | --failure-rate 5
--mtbf 9h | --record rsc-2 | --causes hardware-only | --weibull-shape 0.7 | --spares 2 --repair-time 5h | --repair-time 5h
""",
    "checkpoint": """
--gpu a100 | --optimizer adamw8bit | --precision fp32 | --framework fsdp2 | --zero 3 | --lora-rank 8 | --devices 4 | --interval 9
--mode async | --mode memory | --format consolidated | --content weights | --keep 4 | --writers 4 | --writer-bandwidth 3GB/s
--filesystem 0.5 | --read-bandwidth 3GB/s
""",
    "cost": """
--nodes 4 | --days 3 | --utilisation 50% | --tokens-per-second 3k | --rent | --node-price 5e5 | --network-price 0 | --life 5
--discount 3% | --residual 10% | --maintenance 2% | --staff 1e5 | --colocation 120 | --region us-iowa | --kwh-price 0.3
--pue 1.5 | --operator google | --regime decode | --node-power 5kW | --price 9 | --provider aws | --price-kind spot
""",
    "carbon": """
--nodes 4 | --days 3 | --utilisation 50% | --regime idle | --node-power 5kW | --life 9 | --region us-iowa | --boundary lifecycle
--carbon-intensity 9 | --operator google | --pue 1.5 | --wue 2
""",
}


@pytest.mark.parametrize("verb", OPTIONS)
def test_no_option_is_ignored(cli: Any, verb: str) -> None:
    plain = cli(*VERBS[verb], "--json").document
    for given in (text.strip() for line in OPTIONS[verb].strip().splitlines() for text in line.split("|")):
        ran = cli(*VERBS[verb], *given.split(), "--json")
        found = ran.document
        assert any(found[key] != plain[key] for key in ("result", "notes")), given
    tried = {text.split()[0] for line in OPTIONS[verb].splitlines() for text in line.split("|") if text.strip()}
    apart = {"--json", "--quiet", "--system", "--gpu", "--gpus", "--gpus-per-node", "--own", "--spares", "--hours"}
    assert {p.opts[0] for p in COMMANDS[verb].params if p.opts[0].startswith("--")} - apart <= tried

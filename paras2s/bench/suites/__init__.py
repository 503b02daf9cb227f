"""Public benchmarks of other makers behind one interface: each is one file of rules, read from the user's own download."""

# Entry points of other packages' suites.
SUITE_GROUP = "paras2s.suites"
SUITES = {
    "vstyle": "paras2s.bench.suites.vstyle:VStyle",
    "echomind": "paras2s.bench.suites.echomind:EchoMind",
    "speechparaling": "paras2s.bench.suites.speechparaling:SpeechParaling",
    "uro": "paras2s.bench.suites.uro:UROBench",
    "vocalbench": "paras2s.bench.suites.vocalbench:VocalBench",
    "sdeval": "paras2s.bench.suites.sdeval:SDEval",
    "mtalk": "paras2s.bench.suites.mtalk:MTalkBench",
    "fullduplex": "paras2s.bench.suites.fullduplex:FullDuplexBench",
}

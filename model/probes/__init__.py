"""What a lane computes of one sequence besides its vectors: a probe each; these are all."""

from model.probes.carried import Sources as Sources
from model.probes.head_maps import HeadMaps as HeadMaps
from model.probes.head_shares import Targets as Targets
from model.probes.maps import Maps as Maps
from model.probes.parts import Parts as Parts
from model.probes.probe import Probe as Probe
from model.probes.readout import Readout as Readout
from model.probes.steps import Steps as Steps
from model.probes.why import Why as Why

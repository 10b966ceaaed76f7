package plugin

import (
	"fmt"

	"github.com/sluice-gpu/sluice/driver"
	"github.com/sluice-gpu/sluice/driver/config"
	"github.com/sluice-gpu/sluice/driver/slicing"
	"github.com/sluice-gpu/sluice/driver/state"
)

// configure gives a share what its parameters say and, where they are silent,
// what the card's node group says.
func (d *Driver) configure(s *state.Share, p config.SliceConfig, plan *slicing.Plan) error {
	for _, v := range p.Env {
		s.Env = append(s.Env, v.Name+"="+v.Value)
	}
	if _, _, ok := plan.Instance(s.Device); ok && !s.Admin {
		return d.configureInstance(s, p)
	}
	card, ok := plan.Card(s.Device)
	if s.Admin || !ok {
		return nil // it holds nothing, so there is nothing to hold it to
	}
	if p.Oversubscribe != nil && !*p.Oversubscribe && card.Oversubscribed {
		return fmt.Errorf("the claim says oversubscribe: false and the memory of the card is promised more than once; select cards with oversubscribed == false")
	}
	enforcement := card.Enforcement
	if p.Enforcement != "" {
		enforcement = p.Enforcement
	}
	_, have := d.files.backends[enforcement]
	switch {
	case enforcement == config.ByMIG:
		return fmt.Errorf("enforcement mig is asked for, and the device is no MIG device: ask for one of the class mig.%s", driver.Name)
	case enforcement == config.None:
	case have:
	case enforcement == config.Limiter && p.Enforcement == "":
		// A driver that was started without the limiter holds nobody. Should
		// it get one, the share gets it as well.
		enforcement = ""
	default:
		return fmt.Errorf("enforcement %s is asked for, which the driver of this node does not have", enforcement)
	}
	s.Enforcement = string(enforcement)
	policy := card.CorePolicy
	if p.CorePolicy != "" {
		policy = p.CorePolicy
	}
	if policy == config.Hard && s.Cores == 0 && !s.Whole {
		return fmt.Errorf("corePolicy hard lets a share use its cores and no more, and this one has none: ask for some by capacity.requests.cores")
	}
	s.CorePolicy = string(policy)
	return nil
}

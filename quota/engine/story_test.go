package engine

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestStories runs the stories in testdata: situations that an operator could
// meet, told as events and what the engine makes of them. Run with -rewrite to
// write the answers anew. The language of the stories is explained in
// testdata/README.md.
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories found: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			s := &story{}
			datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
				out, err := s.run(d)
				if err != nil {
					t.Fatalf("%s: %v", d.Pos, err)
				}
				return out
			})
		})
	}
}

// storyStart is when every story begins.
var storyStart = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// story is the engine of one story, with the little world around it.
type story struct {
	engine  *Engine
	options []Option
	fit     *toyCards
	clock   time.Time
	born    int
	specs   map[WorkloadID]Workload
	queues  map[QueueName]ClusterQueue
	// decided are the decisions that were not confirmed yet.
	decided []Decision
}

func (s *story) init(opts ...Option) {
	s.options = opts
	s.engine = New(opts...)
	s.specs = map[WorkloadID]Workload{}
	s.queues = map[QueueName]ClusterQueue{}
	s.clock = storyStart
	s.born = 0
	s.decided = nil
	s.fit = nil
	s.engine.Apply(Tick{Now: s.clock})
}

func (s *story) run(d *datadriven.TestData) (string, error) {
	if s.engine == nil && d.Cmd != "new" {
		s.init()
	}
	switch d.Cmd {
	case "new":
		opts, err := storyOptions(d)
		if err != nil {
			return "", err
		}
		s.init(opts...)
		return "", nil
	case "apply":
		return "", s.apply(d.Input)
	case "decide":
		return s.decide(), nil
	case "confirm":
		s.confirm()
		return "", nil
	case "why":
		var out strings.Builder
		for _, arg := range d.CmdArgs {
			why := s.engine.Why(WorkloadID(arg.Key))
			fmt.Fprintf(&out, "%s: %s\n", arg.Key, describeWhy(why))
		}
		return out.String(), nil
	case "show":
		return s.engine.String(), nil
	case "waiting":
		var out strings.Builder
		for _, arg := range d.CmdArgs {
			for _, item := range s.engine.Waiting(QueueName(arg.Key), 0, 0) {
				fmt.Fprintf(&out, "%d %s (%s, priority %d, %d there)\n", item.Position, item.ID, item.LocalQueue, item.Priority, item.InLocalQueue)
			}
		}
		return out.String(), nil
	case "status":
		var out strings.Builder
		for _, arg := range d.CmdArgs {
			out.WriteString(s.status(arg.Key))
		}
		return out.String(), nil
	}
	return "", fmt.Errorf("unknown command %q", d.Cmd)
}

func describeWhy(why Why) string {
	s := string(why.State)
	if why.Reason != "" {
		s += " " + string(why.Reason)
	}
	if why.Never {
		s += " (never)"
	}
	if why.Gated {
		s += " (gated)"
	}
	return s + ": " + why.String()
}

func storyOptions(d *datadriven.TestData) ([]Option, error) {
	var opts []Option
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "fair":
			var strategies []FairStrategy
			for _, v := range arg.Vals {
				strategies = append(strategies, FairStrategy(v))
			}
			opts = append(opts, FairSharing(strategies...))
		case "ignore-undeclared":
			var devices []Resource
			for _, v := range arg.Vals {
				devices = append(devices, Resource(v))
			}
			opts = append(opts, IgnoreUndeclared(devices...))
		case "usage-based":
			c := AdmissionFairSharing{}
			for _, v := range arg.Vals {
				key, value, _ := strings.Cut(v, "=")
				span, err := time.ParseDuration(value)
				if err != nil {
					return nil, err
				}
				switch key {
				case "half-life":
					c.HalfLife = span
				case "sampling":
					c.Sampling = span
				}
			}
			opts = append(opts, WithAdmissionFairSharing(c))
		case "hole-after":
			span, err := time.ParseDuration(arg.Vals[0])
			if err != nil {
				return nil, err
			}
			opts = append(opts, HoleReserveAfter(span))
		default:
			return nil, fmt.Errorf("unknown option %q", arg.Key)
		}
	}
	return opts, nil
}

func (s *story) decide() string {
	var fit Fit
	if s.fit != nil {
		fit = s.fit
	}
	var out strings.Builder
	for _, d := range s.engine.Decide(fit) {
		fmt.Fprintln(&out, d)
		s.decided = append(s.decided, d)
	}
	if out.Len() == 0 {
		return "nothing\n"
	}
	return out.String()
}

// confirm plays the API: what was decided is now seen there.
func (s *story) confirm() {
	for _, d := range s.decided {
		switch d := d.(type) {
		case Admit:
			s.engine.Apply(Admitted{ID: d.ID, Assignment: d.Assignment, At: s.clock})
		case Evict:
			s.engine.Apply(Evicting{ID: d.Victim})
		}
	}
	s.decided = nil
}

// apply reads events, one a line; indented lines belong to the one above.
func (s *story) apply(input string) error {
	lines := strings.Split(input, "\n")
	for i := 0; i < len(lines); {
		head := lines[i]
		i++
		if h, _, ok := strings.Cut(head, "#"); ok {
			head = h
		}
		if strings.TrimSpace(head) == "" {
			continue
		}
		var body []string
		for i < len(lines) && strings.HasPrefix(lines[i], " ") {
			body = append(body, strings.TrimSpace(lines[i]))
			i++
		}
		fields := strings.Fields(head)
		if err := s.event(fields[0], fields[1:], body); err != nil {
			return fmt.Errorf("%q: %w", head, err)
		}
	}
	return nil
}

func (s *story) event(kind string, args, body []string) error {
	switch kind {
	case "flavor":
		spec := FlavorSpec{Name: FlavorName(args[0])}
		spec.Elastic = len(args) > 1 && args[1] == "elastic"
		s.engine.Apply(FlavorChanged{spec})
	case "no-flavor":
		s.engine.Apply(FlavorRemoved{FlavorName(args[0])})
	case "cohort":
		return s.cohort(args, body)
	case "no-cohort":
		s.engine.Apply(CohortRemoved{CohortName(args[0])})
	case "queue":
		return s.queue(args, body)
	case "no-queue":
		s.engine.Apply(QueueRemoved{QueueName(args[0])})
	case "local":
		return s.local(args)
	case "no-local":
		s.engine.Apply(LocalQueueRemoved{localName(args[0])})
	case "namespace":
		labels := map[string]string{}
		for _, a := range args[1:] {
			k, v, _ := strings.Cut(a, "=")
			labels[k] = v
		}
		s.engine.Apply(NamespaceChanged{args[0], labels})
	case "workload":
		return s.workload(args, body)
	case "again":
		spec := s.specs[WorkloadID(args[0])]
		if err := s.workloadArgs(&spec, args[1:]); err != nil {
			return err
		}
		s.specs[spec.ID] = spec
		s.engine.Apply(WorkloadChanged{spec})
	case "finish":
		for _, id := range args {
			s.engine.Apply(WorkloadRemoved{WorkloadID(id)})
			s.give(id)
		}
	case "release":
		for _, id := range args {
			s.give(id)
			s.engine.Apply(Released{WorkloadID(id)})
		}
	case "evicting":
		s.engine.Apply(Evicting{WorkloadID(args[0])})
	case "eviction-failed":
		s.engine.Apply(EvictionFailed{WorkloadID(args[0])})
	case "admission-failed":
		ev := AdmissionFailed{ID: WorkloadID(args[0])}
		if len(args) > 1 {
			span, err := time.ParseDuration(args[1])
			if err != nil {
				return err
			}
			ev.NotBefore = s.clock.Add(span)
		}
		s.engine.Apply(ev)
	case "admitted":
		return s.admitted(args)
	case "room":
		var flavors []FlavorName
		for _, a := range args {
			flavors = append(flavors, FlavorName(a))
		}
		s.engine.Apply(RoomChanged{flavors})
	case "card":
		return s.card(args)
	case "tick":
		span, err := time.ParseDuration(args[0])
		if err != nil {
			return err
		}
		s.clock = s.clock.Add(span)
		s.engine.Apply(Tick{Now: s.clock})
	case "restart":
		s.restart()
	default:
		return fmt.Errorf("unknown event %q", kind)
	}
	return nil
}

// restart makes a new engine that is told what the API shows: the workloads,
// and who of them holds quota. Queues and flavors are told again by the story.
func (s *story) restart() {
	old := s.engine
	s.engine = New(s.options...)
	s.engine.Apply(Tick{Now: s.clock})
	for id, spec := range s.specs {
		if why := old.Why(id); why.State == Unknown {
			continue
		}
		s.engine.Apply(WorkloadChanged{spec})
		if a, ok := old.Holding(id); ok {
			s.engine.Apply(Admitted{ID: id, Assignment: a, At: old.works[id].hold.at.time(), Evicting: old.Why(id).State == Leaving})
		}
	}
}

func localName(s string) LocalQueueName {
	ns, name, ok := strings.Cut(s, "/")
	if !ok {
		return LocalQueueName{"team", s}
	}
	return LocalQueueName{ns, name}
}

func (s *story) local(args []string) error {
	spec := LocalQueue{Name: localName(args[0])}
	for _, a := range args[1:] {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "queue":
			spec.Queue = QueueName(value)
		case "stop":
			spec.Stop = StopPolicy(value)
		case "weight":
			w, err := storyWeight(value)
			if err != nil {
				return err
			}
			spec.Weight = w
		default:
			return fmt.Errorf("unknown %q", a)
		}
	}
	s.engine.Apply(LocalQueueChanged{spec})
	return nil
}

func storyWeight(s string) (*Weight, error) {
	f, err := strconv.ParseFloat(s, 64)
	w := Weight(f * float64(OneWeight))
	return &w, err
}

func (s *story) queue(args, body []string) error {
	spec := ClusterQueue{Name: QueueName(args[0]), Namespaces: Selector{Everything: true}}
	door := true
	for _, a := range args[1:] {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "cohort":
			spec.Cohort = CohortName(value)
		case "strict":
			spec.Strategy = StrictFIFO
		case "within":
			spec.Preemption.WithinQueue = PreemptionPolicy(value)
		case "reclaim":
			spec.Preemption.Reclaim = PreemptionPolicy(value)
		case "borrow-within":
			spec.Preemption.BorrowWithin = LowerPriority
			if value != "" {
				n, err := strconv.Atoi(value)
				if err != nil {
					return err
				}
				p := int32(n)
				spec.Preemption.BorrowThreshold = &p
			}
		case "when-can-borrow":
			spec.Fungibility.WhenCanBorrow = FungibilityPolicy(value)
		case "when-can-preempt":
			spec.Fungibility.WhenCanPreempt = FungibilityPolicy(value)
		case "preference":
			spec.Fungibility.Preference = FungibilityPreference(value)
		case "weight":
			w, err := storyWeight(value)
			if err != nil {
				return err
			}
			spec.Weight = w
		case "stop":
			spec.Stop = StopPolicy(value)
		case "usage-based":
			spec.UsageBased = true
		case "inactive":
			spec.Inactive = strings.ReplaceAll(value, "_", " ")
		case "namespaces":
			k, v, _ := strings.Cut(value, ":")
			spec.Namespaces = Selector{Requirements: []Requirement{{Key: k, Operator: In, Values: []string{v}}}}
		case "no-door":
			door = false
		default:
			return fmt.Errorf("unknown %q", a)
		}
	}
	groups, err := storyGroups(body)
	if err != nil {
		return err
	}
	spec.Groups = groups
	s.queues[spec.Name] = spec
	s.engine.Apply(QueueChanged{spec})
	if door {
		// A LocalQueue of the same name, for short.
		s.engine.Apply(LocalQueueChanged{LocalQueue{Name: LocalQueueName{"team", args[0]}, Queue: spec.Name}})
	}
	return nil
}

func (s *story) cohort(args, body []string) error {
	spec := Cohort{Name: CohortName(args[0])}
	for _, a := range args[1:] {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "parent":
			spec.Parent = CohortName(value)
		case "weight":
			w, err := storyWeight(value)
			if err != nil {
				return err
			}
			spec.Weight = w
		default:
			return fmt.Errorf("unknown %q", a)
		}
	}
	groups, err := storyGroups(body)
	if err != nil {
		return err
	}
	spec.Groups = groups
	s.engine.Apply(CohortChanged{spec})
	return nil
}

// storyGroups reads quotas: one flavor a line, "flavor: resource=nominal,
// borrow=..,lend=.. ...", groups apart by a line "--".
func storyGroups(body []string) ([]ResourceGroup, error) {
	var groups []ResourceGroup
	open := false
	for _, line := range body {
		if line == "--" {
			open = false
			continue
		}
		flavor, rest, _ := strings.Cut(line, ":")
		fq := FlavorQuotas{Flavor: FlavorName(flavor)}
		var resources []Resource
		for _, entry := range strings.Fields(rest) {
			parts := strings.Split(entry, ",")
			name, value, _ := strings.Cut(parts[0], "=")
			nominal, err := parseAmount(value)
			if err != nil {
				return nil, err
			}
			q := Quota{Nominal: nominal}
			for _, p := range parts[1:] {
				key, value, _ := strings.Cut(p, "=")
				a, err := parseAmount(value)
				if err != nil {
					return nil, err
				}
				switch key {
				case "borrow":
					q.Borrow = &a
				case "lend":
					q.Lend = &a
				default:
					return nil, fmt.Errorf("unknown %q", p)
				}
			}
			resources = append(resources, Resource(name))
			fq.Quotas = append(fq.Quotas, q)
		}
		if !open {
			groups = append(groups, ResourceGroup{Resources: resources})
			open = true
		}
		g := &groups[len(groups)-1]
		g.Flavors = append(g.Flavors, fq)
	}
	return groups, nil
}

func parseAmount(s string) (Amount, error) {
	if s == "unlimited" {
		return Unlimited, nil
	}
	unit := Amount(1)
	for suffix, size := range map[string]Amount{"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40} {
		if strings.HasSuffix(s, suffix) {
			s, unit = strings.TrimSuffix(s, suffix), size
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return Amount(n).Times(int64(unit)), err
}

func (s *story) workload(args, body []string) error {
	s.born++
	spec := Workload{
		ID: WorkloadID(args[0]), LocalQueue: localName(args[1]),
		QueuedAt: storyStart.Add(time.Duration(s.born) * time.Second),
	}
	if err := s.workloadArgs(&spec, args[2:]); err != nil {
		return err
	}
	for _, line := range body {
		fields := strings.Fields(line)
		spec.PodSets = append(spec.PodSets, PodSet{Name: fields[0], Count: 1})
		if err := podSetArgs(&spec.PodSets[len(spec.PodSets)-1], fields[1:]); err != nil {
			return err
		}
	}
	s.specs[spec.ID] = spec
	s.engine.Apply(WorkloadChanged{spec})
	return nil
}

func (s *story) workloadArgs(spec *Workload, args []string) error {
	var rest []string
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "priority":
			n, err := strconv.Atoi(value)
			if err != nil {
				return err
			}
			spec.Priority = int32(n)
		case "at":
			span, err := time.ParseDuration(value)
			if err != nil {
				return err
			}
			spec.QueuedAt = storyStart.Add(span)
		case "not-before":
			span, err := time.ParseDuration(value)
			if err != nil {
				return err
			}
			spec.NotBefore = s.clock.Add(span)
		case "inactive":
			spec.Inactive = true
		case "active":
			spec.Inactive = false
		case "hold":
			spec.Hold = strings.ReplaceAll(value, "_", " ")
		case "refused":
			spec.Refused = strings.ReplaceAll(value, "_", " ")
		case "gated":
			spec.PreemptionGated = true
		case "ungated":
			spec.PreemptionGated = false
		case "queue":
			spec.LocalQueue = localName(value)
		default:
			rest = append(rest, a)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	spec.PodSets = []PodSet{{Name: "main", Count: 1}}
	return podSetArgs(&spec.PodSets[0], rest)
}

// podSetArgs reads "count=4 min=2 gpu=1 t4/gpu=2 once:gpu=1 unfit=t4:reason".
func podSetArgs(ps *PodSet, args []string) error {
	ps.Requests = Amounts{}
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		if key == "unfit" {
			flavor, reason, _ := strings.Cut(value, ":")
			if ps.Unfit == nil {
				ps.Unfit = map[FlavorName]string{}
			}
			ps.Unfit[FlavorName(flavor)] = strings.ReplaceAll(reason, "_", " ")
			continue
		}
		amount, err := parseAmount(value)
		if err != nil {
			return fmt.Errorf("%q: %w", a, err)
		}
		switch {
		case key == "count":
			ps.Count = int32(amount)
		case key == "min":
			ps.MinCount = int32(amount)
		case strings.HasPrefix(key, "once:"):
			if ps.Once == nil {
				ps.Once = Amounts{}
			}
			ps.Once[Resource(strings.TrimPrefix(key, "once:"))] = amount
		case strings.Contains(key, "@"):
			resource, flavor, _ := strings.Cut(key, "@")
			if ps.ByFlavor == nil {
				ps.ByFlavor = map[FlavorName]Amounts{}
			}
			if ps.ByFlavor[FlavorName(flavor)] == nil {
				ps.ByFlavor[FlavorName(flavor)] = Amounts{}
			}
			ps.ByFlavor[FlavorName(flavor)][Resource(resource)] = amount
		default:
			ps.Requests[Resource(key)] = amount
		}
	}
	return nil
}

// admitted reads "id queue=q [at=..] [reserved] [evicting] gpu@a100=4".
func (s *story) admitted(args []string) error {
	ev := Admitted{ID: WorkloadID(args[0]), At: s.clock}
	ps := PodSetAssignment{Name: "main", Count: 1, Flavors: map[Resource]FlavorName{}, Usage: Amounts{}}
	for _, a := range args[1:] {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "queue":
			ev.Assignment.Queue = QueueName(value)
		case "at":
			span, err := time.ParseDuration(value)
			if err != nil {
				return err
			}
			ev.At = storyStart.Add(span)
		case "reserved":
			ev.Reserved = true
		case "evicting":
			ev.Evicting = true
		default:
			resource, flavor, _ := strings.Cut(key, "@")
			amount, err := parseAmount(value)
			if err != nil {
				return err
			}
			ps.Flavors[Resource(resource)] = FlavorName(flavor)
			ps.Usage[Resource(resource)] = amount
		}
	}
	ev.Assignment.PodSets = []PodSetAssignment{ps}
	s.engine.Apply(ev)
	return nil
}

func (s *story) status(name string) string {
	var out strings.Builder
	if q, ok := s.engine.QueueStatus(QueueName(name)); ok {
		fmt.Fprintf(&out, "queue %s: %s", name, q.Code)
		if q.Inactive != "" {
			fmt.Fprintf(&out, " (%s)", q.Inactive)
		}
		fmt.Fprintf(&out, ", %d pending (%d parked), %d reserving (%d leaving), share %s\n", q.Pending, q.Parked, q.Reserving, q.Leaving, FormatAmount("", q.Share))
		out.WriteString(usageLines(q.Usage))
		return out.String()
	}
	if c, ok := s.engine.CohortStatus(CohortName(name)); ok {
		fmt.Fprintf(&out, "cohort %s, parent %q, share %s\n", name, c.Parent, FormatAmount("", c.Share))
		out.WriteString(usageLines(c.Usage))
		return out.String()
	}
	return name + ": not found\n"
}

func usageLines(usage []UsageStatus) string {
	var out strings.Builder
	for _, u := range usage {
		f := func(a Amount) string { return FormatAmount(u.Resource, a) }
		fmt.Fprintf(&out, "  %s %s: nominal %s, used %s, borrowed %s, available %s\n", u.Flavor, u.Resource, f(u.Nominal), f(u.Used), f(u.Borrowed), f(u.Available))
	}
	return out.String()
}

package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// Queues lists what every ClusterQueue may use and uses, a row for each flavor
// and resource. Resources that it has no quota of and does not use are left
// out.
func Queues(queues []kueue.ClusterQueue) Table {
	t := Table{{"CLUSTERQUEUE", "COHORT", "FLAVOR", "RESOURCE", "USED", "NOMINAL", "BORROWED", "PENDING", "ACTIVE"}}
	queues = slices.Clone(queues)
	slices.SortFunc(queues, func(a, b kueue.ClusterQueue) int {
		return cmp.Or(cmp.Compare(a.Spec.CohortName, b.Spec.CohortName), cmp.Compare(a.Name, b.Name))
	})
	for _, q := range queues {
		used, borrowed := usage(q)
		for _, group := range q.Spec.ResourceGroups {
			for _, flavor := range group.Flavors {
				for _, r := range flavor.Resources {
					key := string(flavor.Name) + "/" + string(r.Name)
					if r.NominalQuota.IsZero() && cmp.Or(used[key], "0") == "0" {
						continue
					}
					t = append(t, []string{
						q.Name, cmp.Or(string(q.Spec.CohortName), "-"), string(flavor.Name), string(r.Name),
						cmp.Or(used[key], "0"), amount(string(r.Name), r.NominalQuota), cmp.Or(borrowed[key], "0"),
						fmt.Sprint(q.Status.PendingWorkloads), active(q),
					})
				}
			}
		}
	}
	return t
}

func usage(q kueue.ClusterQueue) (used, borrowed map[string]string) {
	used, borrowed = map[string]string{}, map[string]string{}
	for _, flavor := range q.Status.FlavorsUsage {
		for _, r := range flavor.Resources {
			key := string(flavor.Name) + "/" + string(r.Name)
			used[key], borrowed[key] = amount(string(r.Name), r.Total), amount(string(r.Name), r.Borrowed)
		}
	}
	return used, borrowed
}

// active says whether a queue admits anything, else why not.
func active(q kueue.ClusterQueue) string {
	for _, c := range q.Status.Conditions {
		if c.Type == kueue.ClusterQueueActive {
			if c.Status == "True" {
				return "yes"
			}
			return strings.TrimSpace("no: " + cmp.Or(c.Message, c.Reason))
		}
	}
	return "not judged yet"
}

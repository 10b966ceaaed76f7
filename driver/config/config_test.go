package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const head = "apiVersion: gpu.sluice.dev/v1alpha1\nkind: DriverConfiguration\n"

func TestAnEmptyConfigurationOffersEveryCardDynamically(t *testing.T) {
	c, err := Decode([]byte(head))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.NodeGroups) != 1 || c.NodeGroups[0].Mode != Dynamic {
		t.Errorf("got %+v, want one dynamic group", c.NodeGroups)
	}
}

func TestGroupsOfTheArticleAreValid(t *testing.T) {
	c, err := Load("testdata/article.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.NodeGroups[1].SliceMi(), int64(20000); got != want {
		t.Errorf("slice of %s is %dMi, want %dMi", c.NodeGroups[1].Name, got, want)
	}
	if got := c.NodeGroups[3].SliceMi(); got != 0 {
		t.Errorf("auto slice is %dMi, want 0 (to be computed from the card)", got)
	}
	if c.NodeGroups[4].Mode != Dynamic {
		t.Errorf("last group is %s, want dynamic", c.NodeGroups[4].Mode)
	}
}

func TestWrongConfigurationsAreRefusedWithPathAndReason(t *testing.T) {
	for name, tc := range map[string]struct{ yaml, want string }{
		"unknown kind": {"apiVersion: gpu.sluice.dev/v1alpha1\nkind: DriverConfig\n", `kind "DriverConfiguration"`},
		"old version":  {"apiVersion: gpu.sluice.dev/v1\nkind: DriverConfiguration\n", `apiVersion "gpu.sluice.dev/v1alpha1"`},
		"misspelt field": {head + "nodeGroups:\n- name: a\n  mode: fixed\n  slice: 2\n",
			`unknown field "nodeGroups[0].slice"`},
		"repeated field": {head + "nodeGroups:\n- name: a\n  name: b\n", `"name" already set`},
		"no name":        {head + "nodeGroups:\n- mode: dynamic\n", "nodeGroups[0].name: Required"},
		"same name twice": {head + "nodeGroups:\n- name: a\n- name: a\n",
			`nodeGroups[1].name: Duplicate value: "a"`},
		"mode not known": {head + "nodeGroups:\n- name: a\n  mode: half\n",
			`nodeGroups[0].mode: Unsupported value: "half": supported values: "dynamic", "fixed", "whole", "mig"`},
		"memory of whole cards": {head + "nodeGroups:\n- name: a\n  mode: whole\n  memory: 10Gi\n",
			"nodeGroups[0].memory: Invalid value: \"10Gi\": belongs to mode fixed; in mode whole every claim gets all of a card"},
		"slices in dynamic": {head + "nodeGroups:\n- name: a\n  slices: 2\n", "nodeGroups[0].slices: Invalid value: 2: belongs to mode fixed"},
		"memory in dynamic": {head + "nodeGroups:\n- name: a\n  memory: 1Gi\n", "nodeGroups[0].memory"},
		"fixed without slices": {head + "nodeGroups:\n- name: a\n  mode: fixed\n",
			"nodeGroups[0].slices: Invalid value: 0: mode fixed needs the number of slices"},
		"memory no quantity": {head + "nodeGroups:\n- name: a\n  mode: fixed\n  slices: 2\n  memory: much\n",
			`nodeGroups[0].memory: Invalid value: "much": must be "auto" or a quantity`},
		"memory not whole Mi": {head + "nodeGroups:\n- name: a\n  mode: fixed\n  slices: 2\n  memory: 10G\n",
			"the next smaller one is 9536Mi"},
		"memory too small":  {head + "nodeGroups:\n- name: a\n  mode: fixed\n  slices: 2\n  memory: 100Mi\n", "at least 256Mi"},
		"memory negative":   {head + "nodeGroups:\n- name: a\n  mode: fixed\n  slices: 2\n  memory: -1Gi\n", "at least 256Mi"},
		"cores over a card": {head + "nodeGroups:\n- name: a\n  cores: 101\n", "nodeGroups[0].cores"},
		"cores of all slices over a card": {head + "nodeGroups:\n- name: a\n  mode: fixed\n  slices: 4\n  cores: 30\n",
			"make 120 percent of a card; the largest guarantee is 25"},
		"empty device selector":  {head + "nodeGroups:\n- name: a\n  deviceSelector: {}\n", "nodeGroups[0].deviceSelector: Required"},
		"broken glob":            {head + "nodeGroups:\n- name: a\n  deviceSelector: {product: \"A[\"}\n", "nodeGroups[0].deviceSelector.product"},
		"no selector of devices": {head + "nodeGroups:\n- name: a\n  deviceSelector: {cel: \"device.driver\"}\n", "must evaluate to bool"},
		"default in fixed":       {head + "nodeGroups:\n- name: a\n  mode: fixed\n  slices: 2\n  defaultMemory: 1Gi\n", "nodeGroups[0].defaultMemory: Invalid value: \"1Gi\": belongs to mode dynamic"},
		"default too small":      {head + "nodeGroups:\n- name: a\n  defaultMemory: 1Mi\n", "nodeGroups[0].defaultMemory: Invalid value: \"1Mi\": must be at least 256Mi"},
		"negative reserve":       {head + "nodeGroups:\n- name: a\n  reserve: -1Gi\n", "nodeGroups[0].reserve: Invalid value: \"-1Gi\": must be 0 or more"},
		"reserve no quantity":    {head + "nodeGroups:\n- name: a\n  reserve: some\n", "nodeGroups[0].reserve"},
		"undersubscription":      {head + "nodeGroups:\n- name: a\n  oversubscription: 0.5\n", "nodeGroups[0].oversubscription: Invalid value: \"500m\": must be a number from 1 to 16"},
		"much oversubscription":  {head + "nodeGroups:\n- name: a\n  oversubscription: 17\n", "from 1 to 16"},
		"fine oversubscription":  {head + "nodeGroups:\n- name: a\n  oversubscription: 1.0005\n", "in steps of 0.001"},
		"whole oversubscribed":   {head + "nodeGroups:\n- name: a\n  mode: whole\n  oversubscription: 2\n", "belongs to modes dynamic and fixed"},
		"order not known":        {head + "nodeGroups:\n- name: a\n  order: random\n", `nodeGroups[0].order: Unsupported value: "random": supported values: "pack", "spread"`},
		"whole cards spread":     {head + "nodeGroups:\n- name: a\n  mode: whole\n  order: spread\n", "nodeGroups[0].order: Invalid value: \"spread\": in mode whole no two claims share a device"},
		"instances spread":       {head + "nodeGroups:\n- name: a\n  mode: mig\n  order: spread\n", "nodeGroups[0].order: Invalid value: \"spread\": in mode mig"},
		"core policy not known":  {head + "nodeGroups:\n- name: a\n  corePolicy: soft\n", "nodeGroups[0].corePolicy: Unsupported value: \"soft\""},
		"hard without cores":     {head + "nodeGroups:\n- name: a\n  corePolicy: hard\n", "nodeGroups[0].cores: Invalid value: 0: with corePolicy hard"},
		"enforcement not known":  {head + "nodeGroups:\n- name: a\n  enforcement: honour\n", "nodeGroups[0].enforcement: Unsupported value"},
		"instances of no MIG":    {head + "nodeGroups:\n- name: a\n  enforcement: mig\n", "mode mig and enforcement mig go together"},
		"label name":             {head + "nodeGroups:\n- name: a\n  nodeSelector: {\"a b\": x}\n", "nodeGroups[0].nodeSelector"},
		"label value":            {head + "nodeGroups:\n- name: a\n  nodeSelector: {a: \"x y\"}\n", "nodeGroups[0].nodeSelector"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode([]byte(tc.yaml))
			if err == nil {
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is\n%v\nwant it to contain\n%s", err, tc.want)
			}
		})
	}
}

func TestNumbersAreReadHoweverTheyAreWritten(t *testing.T) {
	for _, text := range []string{"1.5", `"1.5"`, "1500m"} {
		c, err := Decode([]byte(head + "nodeGroups:\n- {name: a, oversubscription: " + text + ", reserve: 1Gi, defaultMemory: 10Gi}\n"))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if g := c.NodeGroups[0]; g.Factor() != 1500 || g.ReserveMi() != 1024 || g.DefaultMemoryMi() != 10240 {
			t.Errorf("%s: factor %d, reserve %d, default %d", text, g.Factor(), g.ReserveMi(), g.DefaultMemoryMi())
		}
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "driver.yaml")
	if err := os.WriteFile(name, []byte("kind: x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{name, name + ".missing"} {
		if _, err := Load(f); err == nil || !strings.Contains(err.Error(), f) {
			t.Errorf("error %v does not name %s", err, f)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(head))
	f.Add([]byte(head + "nodeGroups:\n- name: a\n  mode: fixed\n  slices: 2\n  memory: auto\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Decode(data)
		if err != nil {
			return
		}
		if len(c.NodeGroups) == 0 {
			t.Fatal("valid configuration without a group")
		}
		if errs := Validate(c); len(errs) > 0 {
			t.Fatalf("decoded configuration is invalid: %v", errs)
		}
	})
}

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// options reads the command line behind `create`: what is not given comes from the environment, then from the defaults.
// The answer is what the driver gets, the machine's name, and the install script.
func options(arguments []string, flags []flag) (values map[string]interface{}, machine, script string) {
	values = map[string]interface{}{
		"driver": "", "custom-install-script": "", "hostname-override": "", "engine-install-url": "https://get.docker.com",
		"engine-opt": []string{"a", "b"}, "swarm": false, "swarm-master": false, "swarm-host": "tcp://0.0.0.0:3376",
		"swarm-discovery": "", "engine-env": nil,
	}
	known := map[string]flag{"driver": &StringFlag{}, "custom-install-script": &StringFlag{}, "hostname-override": &StringFlag{}}
	for _, f := range flags {
		known[f.name()] = f
		switch f := f.(type) {
		case *StringFlag:
			values[f.Name] = or(os.Getenv(f.EnvVar), f.Value)
		case *IntFlag:
			values[f.Name] = number(or(os.Getenv(f.EnvVar), strconv.Itoa(f.Value)))
		case *BoolFlag:
			values[f.Name] = os.Getenv(f.EnvVar) != ""
		}
	}
	for len(arguments) > 0 {
		argument := arguments[0]
		arguments = arguments[1:]
		if !strings.HasPrefix(argument, "-") {
			machine = argument
			continue
		}
		name, value, given := strings.Cut(strings.TrimLeft(argument, "-"), "=")
		f, ok := known[name]
		if !ok {
			fail(1, "flag provided but not defined: -%s", name)
		}
		if _, ok := f.(*BoolFlag); ok {
			values[name] = !given || value == "true"
			continue
		}
		if !given {
			if len(arguments) == 0 {
				fail(1, "flag needs an argument: -%s", name)
			}
			value, arguments = arguments[0], arguments[1:]
		}
		if _, ok := f.(*IntFlag); ok {
			values[name] = number(value)
		} else {
			values[name] = value
		}
	}
	if machine == "" {
		fail(1, "Error: No machine name specified")
	}
	return values, machine, values["custom-install-script"].(string)
}

// withScript puts the install script into a file, and the file's name into the first flag that looks like user data.
func withScript(values map[string]interface{}, flags []flag, machine, script string) {
	content, err := os.ReadFile(script)
	must(err)
	for _, f := range flags {
		for _, part := range []string{"user-data", "userdata", "custom-data", "cloud-config"} {
			if !strings.Contains(f.name(), part) {
				continue
			}
			file, err := os.CreateTemp("", "cloud-config")
			must(err)
			_, err = fmt.Fprintf(file, "#cloud-config\nhostname: %s\nwrite_files:\n- content: %s\n  encoding: gzip+b64\n"+
				"  path: /usr/local/custom_script/install.sh\n  permissions: \"0644\"\nruncmd:\n"+
				"- sh /usr/local/custom_script/install.sh\n", machine, zipped(content))
			must(err)
			must(file.Close())
			values[f.name()] = file.Name()
			return
		}
	}
	fail(1, "no flag takes the install script")
}

func or(first, second string) string {
	if first != "" {
		return first
	}
	return second
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	must(err)
	return value
}

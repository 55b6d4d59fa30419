"""What tests share: servers, doubles, jobs that other processes load, ways to run a step."""

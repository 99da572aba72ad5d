"""Compare strategies, audit privacy, plan and check a study, and measure privacy cost and traffic."""

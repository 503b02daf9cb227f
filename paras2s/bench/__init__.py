"""What is measured: answers to held-out questions, their scores with standard errors, and the page that shows both."""

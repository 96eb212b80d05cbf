;;;; The requested format: the header accept as Prometheus and others send it, and accept-encoding.

(in-package #:clgrpc.tests.metrics)

(test open-metrics-if-it-is-preferred
  (flet ((open-p (accept) (metrics:open-metrics-wanted-p accept)))
    (dolist (accept '(nil "" "text/plain" "*/*" "text/html,application/xhtml+xml,*/*;q=0.8"
                      "application/openmetrics-text;q=0.1,text/plain;q=0.5"
                      "application/openmetrics-text;q=0" "application/openmetrics-text;q=x"
                      "application/openmetrics-text;version=0.0.1,text/plain;version=0.0.4;q=0.5"
                      "application/openmetrics-text;version=2.0.0"))
      (is-false (open-p accept) "~S" accept))
    (dolist (accept '("application/openmetrics-text"
                      "application/openmetrics-text; version=1.0.0; charset=utf-8"
                      "application/openmetrics-text;version=1.0.0;q=0.75, text/plain;q=0.5"
                      ;; Prometheus 2 and 3
                      "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
                      "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"))
      (is-true (open-p accept) "~S" accept))))

(test empty-elements-are-passed-over
  "By RFC 9110 section 5.6.1.2 they are no error, and have no meaning."
  (dolist (empty '("," ",," " , " ";" ";q=1" ",;q=1," "text/plain," ",text/plain" "text/plain, ,"))
    (is-false (metrics:open-metrics-wanted-p empty) "~S" empty)
    (is-false (metrics:gzip-wanted-p empty) "~S" empty)
    (is-true (metrics:open-metrics-wanted-p
              (format nil "~A,~Capplication/openmetrics-text" empty #\Tab))
             "~S" empty)
    (is-true (metrics:gzip-wanted-p (format nil "~A,gzip,~A" empty empty)) "~S" empty)))

(test gzip-if-it-is-preferred
  (dolist (accept '(nil "" "identity" "br, deflate" "gzip;q=0" "gzip;q=0, *" "*;q=0"
                    "gzip;q=0.4, identity;q=0.5"))
    (is-false (metrics:gzip-wanted-p accept) "~S" accept))
  (dolist (accept '("gzip" "x-gzip" "GZIP" "deflate, gzip;q=0.5, br" "*" "gzip;q=0.5, *;q=0"
                    "gzip;q=0.5, identity;q=0.5"))
    (is-true (metrics:gzip-wanted-p accept) "~S" accept)))

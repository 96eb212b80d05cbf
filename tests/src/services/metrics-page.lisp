;;;; Metrics over plain HTTP, as curl gets them.

(in-package #:clgrpc.tests.services)

(test metrics-over-plain-http
  "In both formats, compressed, by HEAD, over both versions of HTTP; POST is refused."
  (let* ((metrics (grpc:make-metrics))
         (counter (grpc:make-counter metrics "shop.orders")))
    (with-started (server (grpc:start-server '() :http (list (grpc:metrics-handler metrics)))
                   :drain 0)
      (flet ((get-metrics (&rest arguments) (apply #'curl server "/metrics" arguments))
             (has (line text) (is (search line text) "~S is not in ~S" line text)))
        (grpc:add counter 3)
        (let ((plain (get-metrics "-i")))
          (has "HTTP/1.1 200" plain)
          (has "content-type: text/plain; version=0.0.4; charset=utf-8|" plain)
          (has "vary: accept, accept-encoding|" plain)
          (has "|# TYPE shop_orders_total counter|shop_orders_total{" plain)
          (is-false (search "content-encoding" plain)))
        (let ((open (get-metrics "-i" "-H" "accept: application/openmetrics-text")))
          (has "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8|"
               open)
          (has "|# TYPE shop_orders counter|shop_orders_total{" open)
          (has "|# EOF|" open))
        (has "|# TYPE shop_orders_total counter|" (get-metrics "--http2-prior-knowledge"))
        (let ((packed (get-metrics "-i" "--compressed")))
          (has "content-encoding: gzip|" packed)
          (has "|# TYPE shop_orders_total counter|" packed))
        (let ((head (get-metrics "-I")))
          (has "HTTP/1.1 200" head)
          (has "content-type: text/plain" head)
          (is-false (search "shop_orders" head)))
        (has "405" (get-metrics "-i" "-d" "x"))))))

(test metrics-are-not-made-for-each-request
  "A scrape takes milliseconds: thousands of requests get the last one again, and soon a new one."
  (let* ((metrics (grpc:make-metrics))
         (counter (grpc:make-counter metrics "shop.orders"))
         (scrapes (services::make-scrapes)))
    (flet ((scrape (&rest headers)
             (nth-value 2 (services::tell-metrics
                           metrics scrapes
                           (exchange-tests:request-for "/metrics" headers)))))
      (let* ((answers (loop repeat 200
                            do (grpc:add counter 1)
                            collect (scrape)))
             (different (length (remove-duplicates answers))))
        (is (<= services::+answers-at-once+ different 150) "~D are different" different)
        (is (search (map 'vector #'char-code "# EOF")
                    (scrape '("accept" . "application/openmetrics-text"))))
        (eventually (not (eq (first (last answers)) (scrape))))))))

(test metrics-are-at-the-path-that-is-said
  "They are at no other path."
  (with-started (server (grpc:start-server '() :http (list (grpc:metrics-handler
                                                            (grpc:make-metrics)
                                                            :path "/internal/metrics"))) :drain 0)
    (is (search "HTTP/1.1 200" (curl server "/internal/metrics" "-i")))
    (is (search "HTTP/1.1 404" (curl server "/metrics" "-i"))))
  (signals error (grpc:metrics-handler nil)))

(test scrapes-and-probes-are-in-no-trace-and-no-log
  "They are only if this is requested."
  (flet ((seen (&rest options)
           (let* ((events '()) (tracing (grpc:make-tracing))
                  (log (grpc:make-access-log :function (lambda (&rest event)
                                                         (push event events))))
                  (metrics (grpc:make-metrics)) (health (make-instance 'grpc:health-service))
                  (server (grpc:start-server
                           health :observer (list tracing log)
                           :http (list (apply #'grpc:metrics-handler metrics options)
                                       (apply #'grpc:health-handler health options)))))
             (unwind-protect (progn (curl server "/metrics")
                                    (curl server "/healthz"))
               (grpc:stop-server server))
             (list (length (clgrpc.trace:drain tracing))
                   (mapcar (lambda (event) (getf (cddr event) :status)) events)))))
    (is (equal '(0 ()) (seen)))
    (is (equal '(2 ("OK" "OK")) (seen :quiet nil)))))

(test scrapes-have-a-rate
  "Fifty answers at once, one more each fifth of a second, never more than fifty; a clock that goes
back earns nothing."
  (let ((scrapes (services::make-scrapes :since-ns 1000)))
    (flet ((answers (ns) (loop while (services::answer-anew-p scrapes ns) count t)))
      (is (equal '(50 0 0 1 4 0 1 50)
                 (mapcar #'answers '(1000 1000 190001000 210001000 1050001000 1 200000001
                                     1000000000000)))))
    (is (null (support:lockless (services::scrapes-lock scrapes)
                                `(services::answer-anew-p ,scrapes 0))))))

;;;; What a process tells Prometheus, read back, and what `top` makes of it.

(in-package #:clgrpc.tests.tools)

(test samples-are-read
  (flet ((read-line-of (line) (multiple-value-list (tools::parse-exposition-sample line))))
    (is (equal '("a_total" (("b" . "c") ("d" . "")) 12)
               (read-line-of "a_total{b=\"c\",d=\"\"} 12")))
    (is (equal '("a" () 1) (read-line-of "a 1 1700000000")))
    (is (equal (list "a" (list (cons "b" (format nil "x\"y\\z~%,}="))) 1)
               (read-line-of "a{b=\"x\\\"y\\\\z\\n,}=\"} 1")))
    (loop for (text number) in '(("1.5e+06" 1500000) ("5.0" 5) ("0.5" 0.5d0) ("1e300" 1d300))
          do (is (eql number (third (read-line-of (format nil "a{b=\"c\"} ~A" text))))))
    (dolist (wrong '("" "a" "a{" "a{b" "a{b=\"c" "a{b=\"c\"}" "a NaN" "a{b=\"c\"} +Inf" "a x"))
      (is (equal '(nil) (read-line-of wrong)) "~S" wrong))))

(defun told-methods (&rest counts)
  "The METHOD-READING of a method that had COUNTS calls that took up to 0.1, 0.2 and more seconds,
and one of up to 0.1 that failed."
  (destructuring-bind (short long longer) counts
    (first (tools::read-methods
            (base:string-octets
             (format nil "# TYPE x histogram~%~
                          grpc_server_call_started_total{grpc_method=\"M\"} ~D~%~
                          other{grpc_method=\"M\"} 7~%~
                          grpc_server_call_duration_seconds_bucket{grpc_method=\"M\",~
                          grpc_status=\"OK\",le=\"0.1\"} ~D~%~
                          grpc_server_call_duration_seconds_bucket{grpc_method=\"M\",~
                          grpc_status=\"OK\",le=\"0.2\"} ~D~%~
                          grpc_server_call_duration_seconds_bucket{grpc_method=\"M\",~
                          grpc_status=\"OK\",le=\"+Inf\"} ~D~%~
                          grpc_server_call_duration_seconds_count{grpc_method=\"M\",~
                          grpc_status=\"OK\"} ~D~%~
                          grpc_server_call_duration_seconds_bucket{grpc_method=\"M\",~
                          grpc_status=\"INTERNAL\",le=\"0.1\"} 1~%~
                          grpc_server_call_duration_seconds_bucket{grpc_method=\"M\",~
                          grpc_status=\"INTERNAL\",le=\"0.2\"} 1~%~
                          grpc_server_call_duration_seconds_bucket{grpc_method=\"M\",~
                          grpc_status=\"INTERNAL\",le=\"+Inf\"} 1~%~
                          grpc_server_call_duration_seconds_count{grpc_method=\"M\",~
                          grpc_status=\"INTERNAL\"} 1~%"
                     (+ 3 short long longer) short (+ short long) (+ short long longer)
                     (+ short long longer)))))))

(test methods-are-added-up-over-statuses
  (let ((method (told-methods 9 10 5)))
    (is (string= "M" (tools::method-reading-name method)))
    (is (= 27 (tools::method-reading-started method)))
    (is (= 25 (tools::method-reading-ended method)))
    (is (= 1 (tools::method-reading-failed method)))
    (is (equal '(10 10 5) (mapcar #'cdr (tools::buckets-since method nil))))
    (is (equal '(4 2 0) (mapcar #'cdr (tools::buckets-since method (told-methods 5 8 5)))))))

(test metrics-that-are-read-are-limited
  "As many methods as may be read, and as many buckets of one. One more method is counted; with one
more bucket the command fails."
  (flet ((read-rows (count control)
           (tools::read-methods
            (base:string-octets (format nil control (loop for i below count collect i))))))
    (let ((methods "~{grpc_server_call_started_total{grpc_method=\"m~D\"} 1~%~}")
          (buckets "~{grpc_server_call_duration_seconds_bucket{grpc_method=\"m\",le=\"~D\"} 1~%~}"))
      (is (= 2000 (length (read-rows 2000 methods))))
      (is (equal '(2000 1) (multiple-value-bind (methods left-out) (read-rows 2001 methods)
                             (list (length methods) left-out))))
      (is (= 500 (length (tools::method-reading-buckets (first (read-rows 500 buckets))))))
      (signals tools:failure (read-rows 501 buckets)))))

(test quantiles-are-those-of-prometheus
  (flet ((quantile (share &rest counts)
           (tools::bucket-quantile share (mapcar #'cons '(1/10 2/10 nil) counts))))
    (is (= 1/20 (quantile 1/2 100 0 0)))
    (is (= 3/20 (quantile 3/4 50 50 0)))
    (is (= 2/10 (quantile 99/100 50 0 50)) "beyond the last bound that is it")
    (is (null (quantile 1/2 0 0 0)))))

(test top-tells-methods
  (flet ((look (seconds &rest counts)
           (tools::make-sample :ns (* seconds 1000000000)
                             :methods (list (apply #'told-methods counts)))))
    (is (equal '(("server" "10.0" "0.0" "50.00" "99.00" 2 41 1 "M"))
               (tools::method-rows (look 3 30 5 5) (look 1 10 5 5))))
    (is (equal '("20.5" "0.5")
               (subseq (first (tools::method-rows (look 3 30 5 5)
                                                  (tools::make-sample :ns 1000000000)))
                       1 3))
        "a method whose first calls came meanwhile")
    (is (equal '("-" "-") (subseq (first (tools::method-rows (look 3 30 5 5) nil)) 1 3)))))

(test a-process-that-was-started-again-has-no-rates
  "Its counts have fallen, or it has another start."
  (flet ((look (&key (methods '(5 5 5)) (began 100) (calls 7))
           (tools::make-sample :methods (list (apply #'told-methods methods))
                               :figures (list (cons "process_start_time_seconds" began))
                               :readings (list (tools::make-reading :number 3 :started calls)))))
    (is-true (tools::earlier-p (look) (look)))
    (is-true (tools::earlier-p (look) (look :methods '(5 6 5) :calls 8)))
    (is (not (tools::earlier-p (look) (look :methods '(4 5 5)))))
    (is (not (tools::earlier-p (look) (look :calls 6))))
    (is (not (tools::earlier-p (look) (look :began 101))))))

(defun call-with-greeted (function &rest options)
  "Call FUNCTION with the address of a server of the greeter, with OPTIONS, that has greeted once
and has its metrics at /metrics."
  (let* ((metrics (grpc:make-metrics))
         (credentials (getf options :credentials))
         (server (apply #'grpc:start-server (list (make-instance 'clgrpc.examples:greeter))
                        :observer metrics :http (list (grpc:metrics-handler metrics)) options))
         (address (grpc:server-address server)))
    (unwind-protect
         (grpc:with-channel (channel address
                             :credentials (and credentials
                                               (grpc:tls-credentials
                                                :roots (support:certificate-file "ca.pem"))))
           (helloworld.greeter:say-hello channel (helloworld:make-hello-request :name "Ada")
                                         :timeout 10)
           (funcall function address))
      (grpc:stop-server server :drain 0))))

(defun check-top (address &rest arguments)
  "`top` shows what the server at ADDRESS has counted."
  (multiple-value-bind (code output errors)
      (apply #'run-line "top" address "--once" "--interval" "0.1" arguments)
    (is (= 0 code) "~A" errors)
    (is (search "P99 MS" output))
    (is (search "helloworld.Greeter/SayHello" output))))

(test top-reads-metrics
  "At the URL given, or at the address asked if it answers there; then it needs no channelz."
  (call-with-greeted
   (lambda (address)
     (check-top address)
     (check-top address "--metrics" (format nil "http://~A/metrics" address))
     (is (= 1 (run-line "top" address "--once" "--metrics"
                        (format nil "http://~A/nothing" address))))
     (dolist (wrong '("" "ftp://x" "http://" "http://:80/" "http://x:0/" "http://x:70000/"))
       (is (= 2 (run-line "top" address "--metrics" wrong)) "~A" wrong)))))

(test top-reads-metrics-over-tls
  (call-with-greeted
   (lambda (address)
     (let ((roots (namestring (support:certificate-file "ca.pem"))))
       (check-top address "--tls-ca" roots)
       (check-top address "--tls-ca" roots "--metrics" (format nil "https://~A/metrics" address)))
     (signals tools:failure             ; the system does not trust it
       (tools::get-metrics (tools::parse-url (format nil "https://~A/metrics" address)))))
   :credentials (grpc:tls-credentials :certificate (support:certificate-file "server.pem")
                                      :key (support:certificate-file "server.key"))))

(test servers-without-metrics
  (let* ((server (grpc:start-server (make-instance 'clgrpc.examples:greeter)))
         (address (grpc:server-address server))
         (url (tools::parse-url (format nil "http://~A/metrics" address))))
    (unwind-protect
         (progn (signals tools:failure (tools::get-metrics url))
                (is (null (tools::find-metrics address))))
      (grpc:stop-server server :drain 0))
    (signals tools:failure (tools::get-metrics url) "no server listens there")))

(defun screens (output)
  "The lines of each screen that OUTPUT, of `top` on a terminal, draws."
  (mapcar (lambda (screen) (uiop:split-string screen :separator '(#\Newline)))
          (rest (loop with mark = (format nil "~C[H~:*~C[J" #\Escape)
                      for start = 0 then (+ end (length mark))
                      for end = (search mark output :start2 start)
                      collect (subseq output start end)
                      while end))))

(test top-draws-screens-until-q
  "A screen has as many lines as there is room for. The key s sorts by the next column, q and the
end of the input end it; a process that does not answer is asked again."
  (call-with-greeted
   (lambda (address)
     (grpc:with-channel (channel address)
       (flet ((drawn (height keys &aux (looks 0))
                (with-replaced (('tools::typed-key (fn (_function seconds)
                                                     (is (= 1/2 seconds))
                                                     (pop keys)))
                                ('tools::terminal-size (fn (_function) (values height 40))))
                  (values (with-output-to-string (*standard-output*)
                            (tools::draw-samples
                             (lambda ()
                               (when (= 2 (incf looks)) (grpc:fail :unavailable "no more"))
                               (tools::take-sample channel (tools::find-metrics address nil) nil))
                             "some:1" 1/2))
                          keys))))
         (multiple-value-bind (output left) (drawn 24 (list nil #\s #\S #\x #\q :end))
           (is (equal '(:end) left))
           (is (uiop:string-prefix-p (format nil "~C[?1049h~:*~C[?25l" #\Escape) output))
           (is (uiop:string-suffix-p output (format nil "~C[?25h~:*~C[?1049l" #\Escape)))
           (let ((screens (screens output)))
             (is (equal '("calls" "calls" "failed" "p99" "p99")
                        (loop for (title) in screens
                              collect (subseq title (+ 4 (search " by " title))
                                              (position #\; title)))))
             (loop for (nil second third . others) in screens
                   for i from 1
                   do (if (= i 2)
                          (is (and (string= "" second)
                                   (uiop:string-prefix-p "no answer: " third)) "~A" third)
                          (progn (is (eql 0 (search (if (<= i 3) "heap" "CPU") second)) "~A" second)
                                 (is (string= "" third))
                                 (is (search "KIND" (first others))))))))
         (dolist (key '(#\Q :end))
           (let ((screen (first (screens (drawn 3 (list key))))))
             (is (= 3 (length screen)))
             (is (every (lambda (line) (<= (length line) 40)) (butlast screen)))
             (is (uiop:string-prefix-p "… " (third screen))))))))))

(test the-next-order-is-the-first-after-the-last
  (is (equal '("failed" "p99" "running" "name" "calls")
             (mapcar #'tools::next-order '("calls" "failed" "p99" "running" "name")))))

(test keys-are-those-of-the-standard-input
  "One that is typed in time, or none; or the end of the input."
  (multiple-value-bind (in out) (sb-posix:pipe)
    (let ((kept (sb-posix:dup 0)) (*standard-input* (sb-sys:make-fd-stream in :buffering :none)))
      (unwind-protect
           (flet ((write-key (text) (sb-unix:unix-write out (base:ascii-octets text) 0 1)))
             (sb-posix:dup2 in 0)
             (is (null (tools::typed-key 1/100)))
             (write-key "s")
             (is (eql #\s (tools::typed-key 10)))
             (sb-posix:close out)
             (is (eq :end (tools::typed-key 10))))
        (sb-posix:dup2 kept 0)
        (sb-posix:close kept)
        (close *standard-input*)))))

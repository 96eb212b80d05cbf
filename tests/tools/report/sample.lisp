;;;; Runs to report of, made from a seed: latencies that are log-normal about a median, with a
;;;; stall, failures, two backends and four stages.

(in-package #:clgrpc.tests.report)

(defun histogram-of (values)
  "A histogram of VALUES, nanoseconds."
  (let ((histogram (load:make-histogram)))
    (dolist (value values histogram) (load:record-value histogram value))))

(defun normal (state)
  "A number of the standard normal distribution."
  (* (sqrt (* -2 (log (- 1d0 (random 1d0 state))))) (cos (* 2 pi (random 1d0 state)))))

(defun latencies (count median-ns state)
  (loop repeat count
        collect (round (* median-ns (exp (* 0.35d0 (normal state)))))))

(defun sample-second (number rate median-ns failures state)
  "A second of a run. The seventh has a stall, after which what has waited is late."
  (let ((slow (when (= number 7)
                (loop with late = (floor rate 10)
                      for i from 1 to late
                      collect (* 80000000 (/ i late))))))
    (load:make-second-row
     :count rate :errors failures
     :latency (histogram-of (append (latencies (- rate failures (length slow)) median-ns state)
                                    (mapcar #'round slow)))
     :sent-octets (* 41 rate) :received-octets (* 38 rate) :connections 2
     :lateness-max-ns (+ 20000 (random 90000 state)))))

(defun sample-run (&key (seconds 20) (rate 500) (median-ns 180000) (failures 3) (seed 1)
                        (name nil) (rounds '()) (limited nil))
  "A run of SECONDS seconds at RATE calls a second, of which in each second FAILURES fail."
  (let* ((state (sb-ext:seed-random-state seed))
         (rows (coerce (loop for number below seconds
                             collect (sample-second number rate median-ns failures state))
                       'vector))
         (latency (load:merge-histograms (map 'list #'load:second-row-latency rows)))
         (failed (* failures seconds))
         (slow (histogram-of (loop repeat failed collect 5000000))))
    (load:make-run
     :name name :target "127.0.0.1:50051" :method "helloworld.Greeter/SayHello"
     :started-unix-ns 1793491200123456789 :duration-ns (* seconds 1000000000)
     :options (list (cons "call" "helloworld.Greeter.SayHello") (cons "host" "127.0.0.1:50051")
                    (cons "rps" rate) (cons "total" (* rate seconds)) (cons "insecure" :true)
                    (cons "data" (list (cons "name" "x"))) (cons "loops" 2)
                    (cons "duration" 0.5d0))
     :tags '(("env" . "test")) :loop-kind :open :intended-rps rate :count (* rate seconds)
     :latency latency :all-latency (load:merge-histograms (list latency slow))
     :statuses (list* (load:make-status-row :name "OK" :code 0 :latency latency
                                            :count (load:histogram-count latency))
                      (when (plusp failed)
                        (list (load:make-status-row
                               :name "Unavailable" :code 14 :count failed :latency slow
                               :messages (list (cons "<b>gone</b>, \"away\"" (- failed 1)))))))
     :backends (list (load:make-share-row :name "127.0.0.1:50051" :latency latency
                                            :count (* rate seconds) :errors failed)
                     (load:make-share-row :name "127.0.0.1:50052" :count 0))
     :seconds rows
     :stages (loop for (name . share) in '(("queue" . 1/20) ("connect" . 0) ("send" . 1/8)
                                           ("wait" . 3/4))
                   collect (cons name (histogram-of (loop for i below 2000
                                                          collect (round (* share median-ns
                                                                            (+ 1/2 (/ i 2000))))))))
     :lateness (histogram-of (loop repeat (* rate seconds) collect (random 60000 state)))
     :octets-sent (* 41 rate seconds) :octets-received (* 38 rate seconds)
     :messages-sent (* rate seconds) :messages-received (- (* rate seconds) failed)
     :connections 2 :connects 2 :cpu-ns (* 7000 rate seconds) :limited limited
     :samples (list (load:make-sample :unix-ns 1793491200123456789 :latency-ns 181234)
                    (load:make-sample :unix-ns 1793491201000000000 :latency-ns 5000000
                                      :status "Unavailable" :error "<b>gone</b>, \"away\""))
     :rounds rounds)))

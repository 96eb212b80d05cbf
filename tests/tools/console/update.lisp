;;;; Updates: that they say what the metrics do, and after the first only what has changed.

(in-package #:clgrpc.tests.console)

(defun update-of (console update-stream)
  "The next update of CONSOLE as its viewers read it."
  (parse-json (write-json (console::take-update console update-stream (monotonic-ns)))))

(defun hello-of (console update-stream)
  (parse-json (write-json (console::hello console update-stream))))

(defun count-rows (update series)
  "Of each row of counts in UPDATE the attributes of its series, by SERIES, a list of all rows so
far, and how many calls it has."
  (sort (loop for row across (or (in-json update "counts") #())
              for attributes = (find (aref row 0) series :key (lambda (row) (aref row 0)))
              collect (list (coerce (subseq attributes 1 4) 'list)
                            (loop for i from 3 below (length row) by 2 sum (aref row i))))
        #'string< :key #'prin1-to-string))

(defun metric-rows (console)
  "The same, of the metrics of CONSOLE."
  (sort (loop for (name . role) in console::*durations*
              append (loop for family in (metrics:collect (console:console-metrics console)
                                                          :names (list name))
                           append (loop for point in (metrics:family-points family)
                                        for attributes = (metrics:point-attributes point)
                                        collect (list (list role
                                                            (in-json attributes "grpc.method")
                                                            (in-json attributes "grpc.status"))
                                                      (metrics:point-count point)))))
        #'string< :key #'prin1-to-string))

(defun rows-of (update)
  (coerce (or (in-json update "series") #()) 'list))

(test updates-are-differences
  (let ((console (console:make-console)) (update-stream (console::make-update-stream)))
    (with-probe (channel :options (list :observer console)
                         :channel-options (list :observer console))
        (:ask #'double)
      (dotimes (i 3) (ask channel (note 1)))
      (eventually (= 3 (counted (console:console-metrics console) "grpc.server.call.duration")))
      (let* ((first (update-of console update-stream)) (series (rows-of first)))
        (is (equal '((("client" "lab.Bench/Ask" "OK") 3) (("server" "lab.Bench/Ask" "OK") 3))
                   (count-rows first series)))
        (is (equal (metric-rows console) (count-rows first series)))
        (is (= 6 (length (in-json first "calls"))))
        (is (= 43 (1+ (1+ (length (in-json first "bounds"))))))
        (is (eql 3 (in-json first "values" "grpc.server.call.started/lab.Bench/Ask")))
        ;; then
        (caught (ask channel (note 0)))
        (dotimes (i 2) (ask channel (note 1)))
        (eventually (= 6 (counted (console:console-metrics console) "grpc.server.call.duration")))
        (let* ((second (update-of console update-stream)) (series (append series (rows-of second))))
          (is (equal '((("client" "lab.Bench/Ask" "NOT_FOUND") 1)
                       (("client" "lab.Bench/Ask" "OK") 2)
                       (("server" "lab.Bench/Ask" "NOT_FOUND") 1)
                       (("server" "lab.Bench/Ask" "OK") 2))
                     (count-rows second series)))
          (is (= 2 (length (rows-of second))) "only the new series")
          (is (null (in-json second "bounds")))
          (is (eql 6 (in-json second "values" "grpc.server.call.started/lab.Bench/Ask")))
          (is (null (in-json second "values" "clgrpc.heap.limit")) "it has not changed")
          ;; and what one who comes now gets
          (console::keep-update update-stream
                                (console::take-update console update-stream (monotonic-ns)))
          (let ((hello (hello-of console update-stream)))
            (is (equal (metric-rows console) (count-rows hello (rows-of hello))))
            (is (= 4 (length (rows-of hello))))
            (is (= 1 (length (in-json hello "frames"))))
            (is (stringp (in-json hello "process" "version")))
            (is (= 41 (length (in-json hello "bounds")))))
          (let ((third (update-of console update-stream)))
            (is (null (in-json third "counts")))
            (is (null (in-json third "calls")))
            (is (null (in-json third "series")))))))))

(test sums-of-durations
  (let ((console (console:make-console)) (update-stream (console::make-update-stream)))
    (with-probe (channel :options (list :observer console)) (:ask #'double)
      (dotimes (i 2)
        (ask channel (note -20))
        (wait-until (lambda () (= (1+ i) (counted (console:console-metrics console)
                                                  "grpc.server.call.duration"))))
        (let ((row (aref (in-json (update-of console update-stream) "counts") 0)))
          (is (< 0.019 (aref row 1) 5)))))))

(test servers-as-they-are
  (let ((console (console:make-console)))
    (with-probe (channel :server server :options '(:loops 2)) (:ask #'double)
      (ask channel (note 1))
      (let* ((update (update-of console (console::make-update-stream)))
             (mine (find (grpc:server-address server) (in-json update "servers")
                         :key (lambda (object) (aref (in-json object "addresses") 0))
                         :test #'string=))
             (loops (in-json mine "loops")))
        (is (equalp #("lab.Bench") (in-json mine "services")))
        (is (= 2 (length loops)))
        (is (= 1 (loop for loop across loops sum (in-json loop "connections"))))
        (is (= 1 (loop for loop across loops sum (in-json loop "calls"))))
        (let ((link (loop for loop across loops
                          for links = (in-json loop "links")
                          when (vectorp links) return (aref links 0))))
          (is (eql 0 (search "127.0.0.1:" (in-json link "peer"))))
          (is (eql 0 (in-json link "calls")))
          (is (eq :null (in-json link "tls"))))
        (is (find "clgrpc server 2" (in-json update "threads")
                  :key (lambda (row) (aref row 0)) :test #'string=))))))

(test calls-by-other-protocols-are-shown
  "In series of their own; how many have begun is told of all together."
  (let ((console (console:make-console)))
    (with-probe (channel :server server
                         :options (list :observer console :protocols '(:connect)))
        (:ask #'double)
      (ask channel (note 1))
      (clgrpc.tests.server::answers
       server (format nil "POST /lab.Bench/Ask HTTP/1.1|host: a|content-type: application/json|~
                           content-length: 2|connection: close||{}"))
      (eventually (= 2 (counted (console:console-metrics console) "grpc.server.call.duration")))
      (let ((update (update-of console (console::make-update-stream))))
        (is (equal '("" "connect")
                   (sort (loop for row in (rows-of update) collect (aref row 5)) #'string<)))
        (is (eql 2 (in-json update "values" "grpc.server.call.started/lab.Bench/Ask")))
        (is (equal '("connect" "grpc")
                   (sort (loop for call across (in-json update "calls")
                               collect (in-json call "protocol"))
                         #'string<)))))))

(test update-streams-are-bounded
  (let ((update-stream (console::make-update-stream)))
    (dotimes (i (+ 5 console::+updates+))
      (console::keep-update update-stream (list (cons "time" i) (cons "log" "left out"))))
    (let ((updates (fifo-items (console::update-stream-updates update-stream))))
      (is (= console::+updates+ (length updates)))
      (is (equal '(("time" . 5)) (first updates))))))

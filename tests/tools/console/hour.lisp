;;;; The last hour: looks that nobody has to be there for.

(in-package #:clgrpc.tests.console)

(defun hour-counts (hour-object series)
  "How many calls each frame of HOUR-OBJECT, as viewers read it, has; SERIES are all rows so far."
  (loop for frame across (in-json hour-object "frames")
        collect (loop for (nil count) in (count-rows frame series) sum count)))

(defun read-hour (hour-object)
  (and hour-object (parse-json (write-json hour-object))))

(test looks-say-what-was-new-since-the-one-before
  (let ((console (console:make-console)) (hour (console::make-hour)))
    (with-probe (channel :options (list :observer console)) (:ask #'double)
      (let ((all 0) (metrics (console:console-metrics console)))
        (flet ((look (calls)
                 (dotimes (i calls) (ask channel (note 1)))
                 (incf all calls)
                 (eventually (= all (counted metrics "grpc.server.call.duration")))
                 (console::take-look hour metrics (monotonic-ns))))
          (look 2)
          (look 0)
          (look 3)
          (let* ((whole (read-hour (console::whole-hour hour))) (series (rows-of whole)))
            (is (equal '(2 0 3) (hour-counts whole series)))
            (is (zerop (in-json (aref (in-json whole "frames") 0) "seconds")))
            (is (plusp (in-json (aref (in-json whole "frames") 1) "seconds")))
            (is (equalp whole (read-hour (console::hour-news hour))) "viewers know nothing yet")
            (is (null (console::hour-news hour)))
            (look 4)
            (let ((news (read-hour (console::hour-news hour))))
              (is (equal '(4) (hour-counts news series)))
              (is (null (rows-of news)) "no new series"))))))))

(test an-hour-is-bounded
  (let ((hour (console::make-hour)) (metrics (grpc:make-metrics)))
    (dotimes (i (+ 5 console::+updates+))
      (console::take-look hour metrics (* i +ns-per-second+)))
    (is (= console::+updates+
           (length (in-json (read-hour (console::whole-hour hour)) "frames"))))
    (is (= 3600 (* console::+updates+ console::+look-seconds+)))))

(test the-hour-is-kept-though-nobody-looks
  (with-shown (console server channel)
    (ask channel (note 1))
    (is (null (console::console-thread console)))
    (eventually (plusp (console::hour-looks (console::console-hour console))))
    (console::take-look (console::console-hour console) (console:console-metrics console)
                        (monotonic-ns))
    (with-events (stream console server)
      (let ((hello (nth-value 1 (next-event stream))))
        (is (<= 2 (length (in-json hello "hour" "frames"))))))))

;;;; See src/http/http2/rate-limit.lisp.

(in-package #:clgrpc.tests.http2)

(defun second-ns (seconds) (round (* seconds 1000000000)))

(test rate-limits-come-back
  "Events up to the burst are allowed at once; after a second, as many as a second earns."
  (let ((due 0))
    (flet ((charged (count at)
             "How many of COUNT events AT a time, in seconds, are within the limit."
             (loop repeat count
                   count (multiple-value-bind (new overdrawn)
                             (h2::charge-rate-limit due (second-ns at) 10 5)
                           (setf due new)
                           (not overdrawn)))))
      (is (= 10 (charged 12 100)))
      ;; five came back, but two were overdrawn
      (is (= 3 (charged 5 101)))
      (is (= 10 (charged 20 200))))))

(defun charged-server (&rest options)
  (begin-dialogue :server options))

(defun calmed-by (count &rest frames)
  "After how many of COUNT calls of FRAMES, functions of the stream's identifier, the connection
ends with ENHANCE_YOUR_CALM; nil if it does not."
  (loop for i from 1 to count
        for id = (1- (* 2 i))
        do (apply #'hears (mapcar (lambda (frame) (funcall frame id)) frames))
           (flush)
           (when (h2:connection-closed-p (connection)) (return i))))

(defun header-frame (id &rest flags) `(:headers ,id ,(field-set :post) ,@flags))

(test rapid-resets-end-the-connection
  (let ((*dialogue* (charged-server :max-reset-burst 20)))
    (shake-hands)
    (is (= 21 (calmed-by 100 #'header-frame (lambda (id) `(:rst-stream ,id :cancel)))))))

(test late-frames-end-the-connection
  "Frames without content on streams that have ended: each stream allows some, since their sender
may not know yet."
  (flet ((calmed-on-reset (frame)
           (let ((*dialogue* (charged-server :max-idle-frame-burst 20)))
             (shake-hands)
             ;; a second header block must end the stream
             (hears (header-frame 1) (header-frame 1))
             (flush)
             ;; 8 for the stream, 8 for its reset, 20 at once, of which SETTINGS took 2
             (is (= 35 (calmed-by 100 (lambda (id) (declare (ignore id)) frame)))))))
    (calmed-on-reset '(:rst-stream 1 :cancel))
    (calmed-on-reset '(:data 1 ""))
    (calmed-on-reset (header-frame 1)))
  (let ((*dialogue* (charged-server :max-idle-frame-burst 20)))
    (shake-hands)
    (hears (header-frame 1) (header-frame 1))
    (flush)
    (is (null (calmed-by 1000 (lambda (id) (declare (ignore id)) '(:data 1 "x"))))
        "content may have been sent before the reset was known")))

(test provoked-resets-count-as-well
  "Frames that make us reset streams: malformed requests, and WINDOW_UPDATE of 0."
  (dolist (frame (list (lambda (id) `(:window-update ,id 0))
                       (lambda (id) `(:priority ,id ,id))))
    (let ((*dialogue* (charged-server :max-reset-burst 20)))
      (shake-hands)
      (is (= 21 (calmed-by 100 #'header-frame frame))))))

(test goaways-and-interim-responses-are-charged
  "A server's GOAWAYs, whatever their contents, and 1xx responses after the first of a stream."
  (flet ((calmed (frame)
           (let ((*dialogue* (begin-dialogue :client '(:max-idle-frame-burst 20))))
             (shake-hands)
             (let ((id (request :post :end t)) (last 10001))
               (flush)
               (calmed-by 100 (fn (_i) (funcall frame id (decf last 2))))))))
    (is (<= 18 (or (calmed (fn (_id last) `(:goaway ,last :no-error)))
                   0)
            22))
    (is (<= 18 (or (calmed (fn (id _last) `(:headers ,id ((":status" "103")))))
                   0)
            22)))
  (let ((*dialogue* (begin-dialogue :client '(:max-idle-frame-burst 20 ))))
    (shake-hands)
    (is (null (loop repeat 100
                    for id = (request :post :end t)
                    do (hears `(:headers ,id ((":status" "103"))))
                       (flush)
                    thereis (h2:connection-closed-p (connection))))
        "One interim response for each stream is not charged.")))

(test idle-frames-end-the-connection
  (dolist (frame '((:settings) (:priority 1 3) (:ping-ack 7)))
    (let ((*dialogue* (charged-server :max-idle-frame-burst 20)))
      (shake-hands)
      (is (<= 18 (or (calmed-by 100 (constantly frame)) 0) 22) "~S" frame)))
  (let ((*dialogue* (charged-server :max-idle-frame-burst 20)))
    (shake-hands)
    (hears (header-frame 1))
    (is (<= 18 (or (calmed-by 100 (constantly '(:data 1 ""))) 0) 22)))
  (let ((*dialogue* (begin-dialogue :client '(:max-idle-frame-burst 20))))
    (shake-hands)
    (is (<= 18 (or (calmed-by 100 (constantly '(:ping 7))) 0) 22) "a server's PINGs count, too")))

(defun pings-borne (times &rest options)
  "How many PINGs come, at TIMES in seconds, before the connection ends with too_many_pings; nil if
it does not. The peer has a call meanwhile if OPTIONS begin with true."
  (let ((*dialogue* (apply #'charged-server (rest options))))
    (shake-hands)
    (when (first options) (hears (header-frame 1)))
    (let ((ping (octets-of 0 0 8 6 0 0 0 0 0 1 2 3 4 5 6 7 8)))
      (loop for time in times
            for count from 0
            do (h2:receive-octets (connection) ping 0 (length ping) (second-ns time))
               (flush)
               (when (h2:connection-closed-p (connection))
                 (is (string= "too_many_pings" (h2:connection-error-text (connection))))
                 (return count))))))

(test pings-have-their-interval
  (is (null (pings-borne '(1000 1300 1600 1900 2200) t)))
  ;; two strikes are allowed; the first PING on a connection with a call is not a strike
  (is (= 3 (pings-borne '(1000 1001 1002 1003 1004 1005) t)))
  (is (= 3 (pings-borne '(1000 1300 1600 1900 2200) nil)) "without calls the interval is two hours")
  (is (null (pings-borne '(1000 8200 15400 22600 29800) nil)))
  (is (null (pings-borne '(1000 1300 1600 1900 2200) nil :ping-without-calls t)))
  (is (null (pings-borne '(1000 1001 1002 1003 1004 1005) t :min-ping-interval-seconds 1)))
  (is (= 1 (pings-borne '(1000 1001 1002 1003) t :max-ping-strikes 0))))

(test pings-between-calls-are-borne
  (let ((*dialogue* (charged-server :max-ping-strikes 0 :max-concurrent-streams 100000)))
    (shake-hands)
    (is (null (calmed-by 1000 #'header-frame (constantly '(:ping 7)))))))

(test pings-between-data-are-borne
  "A client that measures bandwidth sends a PING for its DATA, with the window for all of it."
  (let ((*dialogue* (charged-server :max-ping-strikes 0)))
    (shake-hands)
    (hears (header-frame 1))
    (respond 1 :ok)
    (is (null (loop repeat 1000
                    do (h2:send-data (find-stream 1) (make-octets 5) 0 5 nil)
                       (flush)
                       (hears '(:window-update 1 5) '(:window-update 0 5) '(:ping 7))
                    thereis (h2:connection-closed-p (connection)))))))

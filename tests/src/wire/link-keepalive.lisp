;;;; Links in the course of time.

(in-package #:clgrpc.tests.wire)

(defparameter *keepalive* `(:ping ,wire::+keepalive-ping+))

(test peers-that-are-silent-are-asked
  "By a PING after the interval, and again after an answer; without one the link ends."
  (with-link (link :options '(:keepalive-seconds 10 :keepalive-timeout-seconds 2))
    (memory:passes 9)
    (memory:silent)
    (memory:passes 1.5)
    (memory:says *keepalive*)
    (memory:passes 0.001)
    (memory:hears `(:ping-ack ,wire::+keepalive-ping+))
    (memory:passes 9)
    (memory:silent)
    (memory:hears '(:ping 1))           ; any frame is a sign of life
    (memory:says '(:ping-ack 1))
    (memory:passes 9)
    (memory:silent)
    (memory:passes 1.5)
    (memory:says *keepalive*)
    (memory:passes 2.5)
    (is (search "keepalive: no sign of the peer" (second (first (told)))))
    (is-true (memory:end-closed memory:*end*))))

(test nobody-is-asked-with-an-interval-of-0
  (with-link (link :options '(:keepalive-seconds 0 :max-connection-idle-seconds 0))
    (memory:passes 100000)
    (memory:silent)
    (is (null (told)))))

(test idle-links
  "The owner is notified once a link has been without calls for the time, and not before."
  (with-link (link :options '(:keepalive-seconds 0 :max-connection-idle-seconds 100))
    (calls 1)
    (memory:passes 500)
    (is (null (told)))
    (memory:hears '(:rst-stream 1 :cancel))
    (memory:passes 60)
    (is (null (told)))
    ;; a call between two looks counts
    (calls 3)
    (memory:hears '(:rst-stream 3 :cancel))
    (memory:passes 60)
    (is (null (told)))
    (loop repeat 10 do (memory:passes 25))
    (is (equal '(:idle) (told)))))

(test old-links
  "Age, give or take a tenth, and then the grace."
  (with-link (link :options '(:keepalive-seconds 0 :max-connection-age-seconds 100
                              :max-connection-age-grace-seconds 30))
    (memory:passes 89)
    (is (null (told)))
    (memory:passes 21.1)
    (is (equal '(:age) (told)))
    (memory:passes 8)
    (is (null (told)))
    (memory:passes 23)
    (is (equal '(:grace) (told)))
    (memory:passes 1000)
    (is (null (told)))))

(test links-that-say-too-little
  "A preface that does not arrive, or stops, has a time limit."
  (dolist (count '(0 10 24))
    (with-link (link :shaken nil :options '(:preface-timeout-seconds 5))
      (memory:said)
      (memory:say memory:*world* memory:*end* (subseq dialogue:*preface* 0 count))
      (memory:passes 4.9)
      (memory:silent)
      (memory:passes 0.2)
      (memory:says '(:goaway 0 :protocol-error))
      (is (search "no preface and SETTINGS in time" (second (first (told))))))))

(test frames-and-blocks-come-whole-in-time
  "The rest of a frame, and the CONTINUATIONs of a header block, have the same limit."
  (let ((options '(:keepalive-seconds 0 :max-connection-idle-seconds 0 :frame-timeout-seconds 10)))
    (flet ((check (beginning rest)
             (with-link (link :options options)
               (memory:passes 100)
               (memory:say memory:*world* memory:*end* beginning)
               (memory:passes 9)
               (memory:say memory:*world* memory:*end* rest)
               (memory:passes 100)
               (is (null (told)) "The rest came in time."))
             (with-link (link :options options)
               (memory:say memory:*world* memory:*end* beginning)
               (memory:passes 9)
               (is (null (told)))
               (memory:passes 12)
               (is (search "the rest of a frame" (second (first (told)))))
               (is-true (memory:end-closed memory:*end*)))))
      (let ((ping (dialogue:frames-octets (dialogue:make-peer) '((:ping 7)))))
        (check (subseq ping 0 12) (subseq ping 12)))
      ;; :method POST, :scheme http and :path /
      (check (coerce '(0 0 1 1 0 0 0 0 1 #x83) 'octets)
             (coerce '(0 0 2 9 4 0 0 0 1 #x86 #x84) 'octets)))))

(test output-is-taken-in-time
  (with-link (link :options '(:keepalive-seconds 0 :max-connection-idle-seconds 0
                              :send-timeout-seconds 10))
    (memory:passes 100)
    (is (null (told)))
    (setf (memory:end-full memory:*end*) t)
    (memory:hears '(:ping 1))
    (memory:passes 9)
    (is (null (told)))
    (memory:passes 12)
    (is (search "does not receive our output" (second (first (told)))))
    (is-true (memory:end-closed memory:*end*))))

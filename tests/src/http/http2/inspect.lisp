;;;; See src/http/http2/inspect.lisp: frames described for people.

(in-package #:clgrpc.tests.http2)

(defun described (&rest octets)
  (let ((octets (coerce octets 'octets)))
    (multiple-value-list (h2:describe-frame octets 0 (length octets)))))

(test describe-frame
  (is (equal '((:frame "HEADERS" :stream 5 :length 1 :flags (:end-stream :end-headers)) 10)
             (described 0 0 1 1 5 0 0 0 5 #x82)))
  (is (equal '((:frame "DATA" :stream 1 :length 16384) 16393)
             (described 0 64 0 0 0 0 0 0 1 1 2 3))
      "the payload is incomplete")
  (is (equal '((:frame "WINDOW-UPDATE" :stream 0 :length 4 :increment 256) 13)
             (described 0 0 4 8 0 0 0 0 0 0 0 1 0)))
  (is (equal '((:frame "RST-STREAM" :stream 3 :length 4 :code "CANCEL") 13)
             (described 0 0 4 3 0 0 0 0 3 0 0 0 8)))
  (is (equal '((:frame "SETTINGS" :stream 0 :length 12
                :settings (:max-concurrent-streams 100 99 7))
               21)
             (described 0 0 12 4 0 0 0 0 0 0 3 0 0 0 100 0 99 0 0 0 7)))
  (is (equal '((:frame "SETTINGS" :stream 0 :length 0 :flags (:ack)) 9)
             (described 0 0 0 4 1 0 0 0 0)))
  (is (equal '((:frame "PING" :stream 0 :length 8 :flags (:ack) :payload "0102030405060708") 17)
             (described 0 0 8 6 1 0 0 0 0 1 2 3 4 5 6 7 8)))
  (is (equal '((:frame "GOAWAY" :stream 0 :length 10 :last-stream 7 :code "NO_ERROR" :debug "hi")
               19)
             (described 0 0 10 7 0 0 0 0 0 0 0 0 7 0 0 0 0 104 105)))
  (is (equal '((:frame "frame of type 200" :stream 9 :length 0) 9)
             (described 0 0 0 200 1 0 0 0 9)))
  (is (equal '(nil) (described 0 0 0 4 0 0 0 0)) "the header is incomplete")
  (is (equal '((:frame "PING" :stream 0 :length 2) 11) (described 0 0 2 6 0 0 0 0 0 1 2))
      "a frame of the wrong length is described"))

;;;; Room in the heap for decoded messages.

(in-package #:clgrpc.tests.web)

(defun call-noting-rooms (function)
  "Call FUNCTION with a function that returns for how much room calls have asked since its last
call."
  (let ((rooms '()))
    (with-replaced (('clgrpc.rpc:call-with-room (lambda (call-with-room call octets &rest arguments)
                                                  (push octets rooms)
                                                  (apply call-with-room call octets arguments))))
      (funcall function (lambda () (nreverse (shiftf rooms '())))))))

(test messages-of-the-web-need-little-room
  "A message in Protocol Buffers needs as much room as in gRPC: little, unless it takes much memory.
JSON needs room in proportion to its length."
  (with-web-probe (server) (:ask #'double)
    (call-noting-rooms
     (lambda (rooms)
       (flet ((rooms (type octets)
                (with-octets-file (file octets)
                  (is (string= "200" (post server "/lab.Bench/Ask" type file "-o" "/dev/null"
                                           "-w" "%{http_code}"))))
                (funcall rooms)))
         (let ((long (grpc:serialize (note 1 :body 17000))))
           (is (equal (list (+ (expt 2 20) (* 8 (length long)))) (rooms "application/proto" long))))
         (is (null (rooms "application/proto" (grpc:serialize (note 1 :body 15000)))))
         (loop for (length times) in '((1900 nil) (2100 536) (17000 536))
               for json = (ascii-octets (format nil "{\"number\":1~VA}" (- length 12) ""))
               do (is (equal (and times (list (* times (length json))))
                             (rooms "application/json" json)))))))))

(test messages-of-the-web-that-grow-need-room
  "As in gRPC, a message of less than 16 KB that takes more than 1 MB is decoded in promised room."
  (call-with-taker
   '(:protocols (:grpc :grpc-web))
   (lambda (server)
     (flet ((status (message)
              (with-octets-file (file (ascii-octets
                                       (encode-base64 (framed (grpc:serialize message)))))
                (let* ((text (post server "/wide.Taker/Take" "application/grpc-web-text" file))
                       (end (octets-string (decode-base64 text :start (search "gAAAA" text))
                                           :start 5))) ; the messages come before
                  (parse-integer end :start (length "grpc-status: ") :junk-allowed t)))))
       (is (eql 0 (status (wide 8000))))
       (call-with-room-short
        (lambda (free)
          (is (eql 8 (status (wide 8000))))
          (is (eql 0 (status (wide 1 15000))))
          (funcall free)))
       (is (eql 0 (status (wide 8000))))))))

(test whole-bodies-have-the-limit-of-messages
  "Over HTTP/2 a body needs no length in its head."
  (with-web-probe (server :max-receive-octets 100) (:ask #'double)
    (with-raw-client (peer (grpc:server-address server))
      (loop for (length status) in '((100 "200") (101 "429"))
            for body = (ascii-octets (format nil "{\"number\":1~VA}" (- length 12) ""))
            do (is (equal status (field-of ":status"
                                           (exchange-headers
                                            (ask-raw peer "/lab.Bench/Ask" :data body
                                                     :content-type "application/json")))))))))

;;;; Clients that mean ill, against our server: what is wrong with one request ends that call with
;;;; the right status and leaves the connection alone; what is wrong with HTTP/2 ends stream or
;;;; connection with the right code; and a bystander on a connection of its own never notices.

(in-package #:clgrpc.tests.abuse)

;;; The victim

(defun answer (note call)
  (declare (ignore call))
  (note (1+ (number-of note))))

(defun add-up (stream call)
  (declare (ignore call))
  (let ((count 0))
    (grpc:do-messages (note stream)
      (incf count (number-of note)))
    (note count)))

(defun count-down (note call)
  (loop for i from (number-of note) downto 1
        do (grpc:send call (note i :body 1000))))

(defun connection-count (server)
  (getf (grpc:server-statistics server) :connections))

(defun call-with-victim (function options handlers channel-options watched)
  (with-log ()
    (let* ((server (apply #'start-probe handlers
                          ;; the threads have to be gone before a test is over
                          :reserve-idle-seconds 0.3 options))
           (channel (apply #'grpc:make-channel (grpc:server-address server) channel-options)))
      (unwind-protect
           (flet ((bystander () (is (= 7 (number-of (ask channel (note 6))))))
                  (attack () (funcall function (grpc:server-address server) server)))
             (bystander)
             (multiple-value-prog1 (if watched (call-watched channel #'attack) (attack))
               (bystander)
               (is-true (wait-until (lambda () (= 1 (connection-count server))))
                        "~D connections are left" (1- (connection-count server)))))
        (grpc:close-channel channel)
        (is-true (grpc:stop-server server :drain 5))))))

(defmacro with-victim ((address &key (server (gensym "SERVER")) options channel-options
                                  (watched t)
                                  (handlers '(list :ask #'answer :watch #'count-down
                                              :collect #'add-up :chat #'echo)))
                       &body body)
  "Evaluate BODY with ADDRESS bound to that of a server started with OPTIONS. A bystander, whose
channel has CHANNEL-OPTIONS, must be served before and after, and, if WATCHED, meanwhile, with what
else CALL-WATCHED promises; no error may be logged, and all connections but the bystander's must go
away."
  `(call-with-victim (lambda (,address ,server) (declare (ignorable ,server)) ,@body)
                     ,options ,handlers ,channel-options ,watched))

(defparameter *paths* '("/lab.Bench/Ask" "/lab.Bench/Watch" "/lab.Bench/Collect" "/lab.Bench/Chat"))

;;; Requests that are wrong

(defparameter *bad-fields*
  `(((:fields (("grpc-timeout" ""))) :internal)
    ((:fields (("grpc-timeout" "S"))) :internal)
    ((:fields (("grpc-timeout" "1s"))) :internal)
    ((:fields (("grpc-timeout" "-1S"))) :internal)
    ((:fields (("grpc-timeout" "123456789S"))) :internal)
    ((:fields (("grpc-timeout" ,(make-string 5000 :initial-element #\9)))) :internal)
    ((:fields (("grpc-timeout" "99999999H"))) :ok)
    ((:fields (("grpc-timeout" "99999999S"))) :ok)
    ((:fields (("grpc-timeout" "1H") ("grpc-timeout" "1S"))) :ok)
    ((:fields (("grpc-encoding" "snappy"))) :unimplemented)
    ((:content-type nil) 415)
    ((:content-type "") 415)
    ((:content-type "text/plain") 415)
    ((:content-type "application/grpc-web") 415)
    ((:content-type "application/grpcx") 415)
    ((:content-type ,(make-string 5000 :initial-element (code-char 255))) 415)
    ((:content-type "APPLICATION/GRPC+Proto; a=b") :ok)
    ((:method "GET") 405)
    ((:method ,(string (code-char 255))) 405)
    ((:fields (("te" "gzip"))) (:reset :protocol-error))
    ((:fields (("connection" "close"))) (:reset :protocol-error))
    ((:fields ((":path" "/again"))) (:reset :protocol-error))
    ((:fields (("content-length" "1"))) (:reset :protocol-error))
    ((:fields (("content-length" "999999999999999999999999"))) (:reset :protocol-error))
    ((:fields (("x-bin" "!!!") ("y-bin" ",,,") ("z" ,(string (code-char 1))) ("" "x")))
     (:reset :protocol-error))
    ((:fields (("x-bin" "AQ==") ("y-bin" ",,,") ("z" ,(format nil "~C~C" (code-char 1)
                                                            (code-char 255)))))
     :ok)
    ((:fields (("x-bin" "AQ==") ("y-bin" ",,,="))) :internal)
    ((:fields (("host" "x"))) :ok)
    ((:fields (("host" "y"))) (:reset :protocol-error))
    ((:fields (("grpc-timeout" "0n"))) :deadline-exceeded)
    ((:fields (("grpc-timeout" "1n"))) :deadline-exceeded)
    ((:fields ,(loop for i below 200 collect (list (format nil "h~D" i)
                                               (make-string 50 :initial-element #\v))))
     (:reset :enhance-your-calm)))
  "What is odd about the fields of a request, and how it must end.")

(test bad-header-fields
  (with-victim (address)
    (with-attacker (attacker address)
      (loop for (keys wanted) in *bad-fields*
            for id = (apply #'demand attacker "/lab.Bench/Ask" (note-octets 5) keys)
            do (is (equal wanted (verdict attacker id)) "~S" (subseq (prin1-to-string keys) 0 40)))
      (dolist (path (list "*" "/" "//" "/x" "/lab.Bench/Ask/" "/lab.Bench/Ask?" "/LAB.Bench/Ask"
                          "/lab.Bench" "lab.Bench/Ask" (string (code-char 255))
                          (make-string 8000 :initial-element #\/)))
        (is (eq :unimplemented (verdict attacker (demand attacker path (note-octets 5))))))
      (is-true (served-p attacker)))))

(defparameter *bad-contents*
  (flet ((claim (length) (framed (octets-of 1 2 3) :length length)))
    `((,(claim #xFFFFFFFF) :resource-exhausted)
      (,(claim 4194305) :resource-exhausted)
      (,(claim 4) :internal)            ; ends within the message
      (,(octets-of 0 0) :internal)      ; within a prefix
      (,(concatenate 'octets (note-octets 1) (octets-of 0)) :internal)
      (,(framed (octets-of) :flag 1) :internal)
      (,(framed (octets-of 8 1) :flag 255) :internal)
      (,(framed (octets-of 18 5 97 98)) :internal) ; a string of 5 octets of which 2 are there
      (,(framed (octets-of 8 255 255)) :internal)  ; a varint without end
      (,(framed (octets-of 18 1 255)) :internal)   ; no UTF-8
      (,(framed (octets-of 2 0)) :internal)        ; field 0
      (,(framed (octets-of 15)) :internal)         ; wire type 7
      (,(framed (make-array 300 :element-type 'octet :initial-element 11)) :internal)))
  "Content that is not a message of the right kind, and the status it must end with.")

(defun check-bad-contents (address)
  (with-attacker (attacker address)
    (dolist (path *paths*)
      (loop for (octets wanted) in *bad-contents*
            do (is (eq wanted (verdict attacker (demand attacker path octets))) "~A ~S" path
                   (subseq octets 0 (min 9 (length octets))))
               ;; the same without an end, where that alone is not what is wrong
               (when (or (eq wanted :resource-exhausted) (= 1 (aref octets 0)))
                 (is (eq wanted (verdict attacker (demand attacker path octets :end nil)))))
               ;; and octet by octet
               (let ((id (new-id attacker)))
                 (throw-frames attacker (list :headers id (request-fields path)))
                 (loop for octet across octets
                       do (throw-frames attacker (list :data id (octets-of octet))))
                 (throw-frames attacker (list :data id "" :end-stream))
                 (is (eq wanted (verdict attacker id)) "~A ~S by octets" path octets))))
    (dolist (path '("/lab.Bench/Ask" "/lab.Bench/Watch"))
      (is (eq :unimplemented (verdict attacker (demand attacker path (octets-of)))))
      (is (eq :unimplemented
              (verdict attacker (demand attacker path (concatenate 'octets (note-octets 1)
                                                                   (note-octets 2)))))))
    (is-true (served-p attacker))))

(test bad-contents
  "Each ends its call alone, whoever takes the messages."
  (with-victim (address) (check-bad-contents address))
  (with-victim (address :options '(:execution :inline)
                        :handlers (list :ask #'answer :watch #'count-down
                                        :collect #'add-up-reactively :chat #'echo-reactively))
    (check-bad-contents address)))

(test messages-cut-anywhere
  "Two messages cut in three at all places, with empty DATA between, and padded."
  (with-victim (address)
    (with-attacker (attacker address)
      (let* ((octets (concatenate 'octets (note-octets 20) (note-octets 22)))
             (length (length octets)))
        (loop for a from 0 to length
              do (loop for b from a to length by 3
                       do (let ((id (new-id attacker)))
                            (throw-frames attacker
                                          (list :headers id (request-fields "/lab.Bench/Collect"))
                                          (list :data id (subseq octets 0 a) '(:pad 200))
                                          (list :data id "")
                                          (list :data id (subseq octets a b))
                                          (list :data id (subseq octets b) :end-stream))
                            (unless (eq :ok (verdict attacker id))
                              (fail "cut at ~D and ~D" a b)))))
        (is-true (served-p attacker))))))

(test sessions-cut-anywhere
  "A whole session arrives in two pieces, cut at every octet."
  (with-victim (address)
    (let ((session (concatenate 'octets *preface*
                                (opening-octets '(:settings) '(:settings-ack)
                                                `(:headers 1 ,(request-fields "/lab.Bench/Ask"))
                                                `(:data 1 ,(note-octets 1) :end-stream)))))
      (loop for cut from 1 below (length session)
            do (with-attacker (attacker address :polite nil)
                 (throw-octets attacker (subseq session 0 cut))
                 (throw-octets attacker (subseq session cut))
                 (unless (eq :ok (verdict attacker 1)) (fail "cut at ~D" cut)))))))

;;; HTTP/2 that is wrong

(defparameter *illegal*
  (let ((fields (request-fields "/lab.Bench/Ask")))
    `((:idle ((:data 99 "x")) :protocol-error)
      (:idle ((:rst-stream 99 :cancel)) :protocol-error)
      (:idle ((:window-update 99 1)) :protocol-error)
      (:idle ((:headers 2 ,fields)) :protocol-error)
      (:idle ((:headers 0 ,fields)) :protocol-error)
      (:idle ((:continuation 99 ,(octets-of))) :protocol-error)
      (:idle ((:headers 99 ,fields :open) (:data 99 "")) :protocol-error)
      (:idle ((:headers 99 ,fields :open) (:continuation 101 ,(octets-of))) :protocol-error)
      (:idle ((:frame 1 #x2C 99 ,(octets-of 255 0))) :frame-size-error)
      (:idle ((:frame 1 #xC 99 ,(octets-of 255 0))) :protocol-error)
      (:idle ((:headers 99 ,(octets-of 128))) :compression-error)
      (:idle ((:headers 99 ,(octets-of #x3F #xFF #xFF #xFF #x7F))) :compression-error)
      (:open ((:frame 0 8 1 ,(octets-of 1))) :protocol-error)
      (:open ((:frame 0 8 1 ,(octets-of))) :protocol-error)
      (:open ((:frame 3 0 1 ,(octets-of 1 2 3))) :frame-size-error)
      (:open ((:frame 5 4 1 ,(octets-of 0 0 0 2))) :protocol-error)
      (:open ((:headers 1 ,fields)) (:reset :protocol-error))
      (:open ((:window-update 1 0)) (:reset :protocol-error))
      (:open ((:window-update 1 #x7FFFFFFF)) (:reset :flow-control-error))
      (:open ((:priority 1 1)) (:reset :protocol-error))
      (:open ((:frame 2 0 1 ,(octets-of 1))) (:reset :frame-size-error))
      (:half-closed ((:data 1 "x")) (:reset :stream-closed))
      (:half-closed ((:headers 1 ,fields)) (:reset :stream-closed))
      (:half-closed ((:window-update 1 0)) (:reset :protocol-error))
      (:closed ((:data 1 "x")) (:reset :stream-closed))
      (:closed ((:headers 1 ,fields)) :stream-closed)
      (:any ((:settings (:enable-push 2))) :protocol-error)
      (:any ((:settings (:initial-window-size #x80000000))) :flow-control-error)
      (:any ((:settings (:max-frame-size 16383))) :protocol-error)
      (:any ((:frame 4 0 0 ,(octets-of 1))) :frame-size-error)
      (:any ((:frame 4 1 0 ,(octets-of 0 1 0 0 0 0))) :frame-size-error)
      (:any ((:frame 4 0 1 ,(octets-of))) :protocol-error)
      (:any ((:frame 6 0 0 ,(octets-of 1))) :frame-size-error)
      (:any ((:frame 6 0 1 ,(make-octets 8))) :protocol-error)
      (:any ((:frame 7 0 0 ,(octets-of 1))) :frame-size-error)
      (:any ((:frame 7 0 1 ,(make-octets 8))) :protocol-error)
      (:any ((:frame 8 0 0 ,(octets-of 1))) :frame-size-error)
      (:any ((:window-update 0 0)) :protocol-error)
      (:any ((:window-update 0 #x7FFFFFFF)) :flow-control-error)
      (:any ((:data 0 "x")) :protocol-error)
      (:any ((:frame 0 0 1 ,(make-octets 16385))) :frame-size-error)
      (:any ((:frame 77 255 1 ,(make-octets 16385))) :frame-size-error)))
  "The state a stream is in, frames that are illegal then, and the code of the connection error or,
as (:reset CODE), of the stream error.")

(defun bring-into (attacker state)
  "Have stream 1 be in STATE, as the server sees it."
  (let ((headers `(:headers 1 ,(request-fields "/lab.Bench/Chat"))))
    (ecase state
      ((:idle :any))
      (:open (throw-frames attacker headers))
      (:half-closed (throw-frames attacker `(:headers 1 ,(request-fields "/lab.Bench/Watch"))
                                  `(:data 1 ,(note-octets 1000000) :end-stream)))
      (:closed (is-true (served-p attacker))))))

(defun next-reset-code (attacker)
  (third (first (last (hear attacker (lambda (form) (eq :rst-stream (first form))))))))

(test illegal-frames
  "In every state of a stream, every frame that is illegal then."
  (with-victim (address)
    (loop for (state forms wanted) in *illegal*
          do (with-attacker (attacker address)
               (bring-into attacker state)
               (apply #'throw-frames attacker forms)
               (is (equal wanted (if (consp wanted)
                                     (list :reset (next-reset-code attacker))
                                     (hear-to-the-end attacker)))
                   "~S ~S" state (first forms))))))

(defun after-preface (octets)
  (concatenate 'octets *preface* octets))

(test beginnings
  "Half a preface, none, no SETTINGS, none acknowledged: the time-outs of the options end them."
  (with-victim (address :options '(:preface-timeout-seconds 0.2 :settings-timeout-seconds 0.2))
    (loop for (octets wanted)
            in `((,(octets-of) :protocol-error)
                 (,(subseq *preface* 0 10) :protocol-error)
                 (,*preface* :protocol-error)
                 (,(after-preface (octets-of 0 0 0 4)) :protocol-error)
                 (,(after-preface (opening-octets '(:settings))) :settings-timeout)
                 (,(after-preface (opening-octets '(:ping 1))) :protocol-error)
                 (,(after-preface (opening-octets '(:settings-ack))) :protocol-error)
                 (,(ascii-octets "GET / HTTP/1.1") :protocol-error))
          do (with-attacker (attacker address :polite nil)
               (throw-octets attacker octets)
               (is (eq wanted (hear-to-the-end attacker)) "~S" octets)))
    (with-attacker (attacker address :polite nil)
      (loop for octet across (after-preface (opening-octets '(:settings)))
            do (throw-octets attacker (octets-of octet)))
      (throw-frames attacker '(:settings-ack))
      (is-true (served-p attacker)))))

(defun ordinary-session ()
  "Octets of a session with a call of each kind."
  (apply #'opening-octets
         '(:settings) '(:settings-ack)
         (loop for path in *paths*
               for id from 1 by 2
               collect (list :headers id (request-fields path :fields '(("grpc-timeout" "1S"))))
               collect (list :data id (note-octets 2) :end-stream))))

(defun mutate (octets)
  "OCTETS with a few random changes."
  (let ((octets (copy-seq octets)))
    (dotimes (i (1+ (random 6)) octets)
      (let ((at (random (length octets))))
        (ecase (random 4)
          (0 (setf (aref octets at) (random 256)))
          (1 (setf (aref octets at) (logxor (aref octets at) (ash 1 (random 8)))))
          (2 (setf octets (concatenate 'octets (subseq octets 0 at) (random-octets (random 20))
                                       (subseq octets at))))
          (3 (setf octets (concatenate 'octets (subseq octets 0 at)
                                       (subseq octets (min (length octets) (+ at (random 20))))
                                       (octets-of 0)))))))))

(test random-clients
  "Random octets, random frames and mutated sessions on connections that then vanish or wait."
  (with-random (random-clients)
    (with-victim (address)
      (let ((session (ordinary-session)))
        (dotimes (i 400)
          (with-attacker (attacker address :polite nil)
            (throw-octets attacker
                          (ecase (random 4)
                            (0 (random-octets (random 2000)))
                            (1 (after-preface (random-octets (random 2000))))
                            ((2 3) (after-preface (mutate session)))))
            (when (zerop (random 3))
              ;; hear what there is, but wait for nothing
              (hear attacker (constantly nil) :seconds 0.002))))))))

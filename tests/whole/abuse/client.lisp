;;;; Servers that mean ill, against our client: every call must end, with a status that fits, and
;;;; within its time; what may be repeated safely must be said so; and the channel must close.

(in-package #:clgrpc.tests.abuse)

(defparameter *kinds* '(:ask :watch :collect :chat))

(defun make-attempt (kind channel timeout)
  (ecase kind
    (:ask (ask channel (note 1) :timeout timeout))
    (:watch (numbers (watch channel (note 1) :timeout timeout)))
    (:collect (collect channel (list (note 1) (note 2)) :timeout timeout))
    (:chat (numbers (chat channel (vector (note 1)) :timeout timeout)))))

(defun attempt (kind channel &key (timeout +patience+))
  "Make a call of KIND; return :ok or its status, and as second value its RPC-ERROR."
  (let ((error (caught (make-attempt kind channel timeout))))
    (if error
        (values (status:rpc-error-status error) error)
        :ok)))

(defun response-fields (&rest more)
  `((":status" "200") ("content-type" "application/grpc") ,@more))

(defun check-answer (name answer wanted &key (timeout +patience+) opening options)
  "Check that each kind of call, on a channel with OPTIONS, ends as WANTED says, a status or one for
each of *KINDS*, when a server begins with OPENING and answers as ANSWER says."
  (with-evil-server (address :opening (or opening (opening-octets '(:settings) '(:settings-ack))))
                    answer
    (loop for kind in *kinds*
          for status = (if (listp wanted) (elt wanted (position kind *kinds*)) wanted)
          do (let ((channel (apply #'grpc:make-channel address options)))
               (is (eq status (attempt kind channel :timeout timeout)) "~A: ~A" name kind)
               (grpc:close-channel channel)))))

(defmacro frames ((id) &rest forms)
  "An answer of the frames FORMS, templates in which ID is the stream's."
  `(lambda (,id) (declare (ignorable ,id)) (list ,@forms)))

(defun ok-and-then (&rest trailers)
  "An answer of one message and TRAILERS."
  (frames (id) `(:headers ,id ,(response-fields)) `(:data ,id ,(note-octets 1))
    `(:headers ,id ,trailers :end-stream)))

(defun answered-by-fields (&rest fields)
  "An answer that is only headers."
  (frames (id) `(:headers ,id ,fields :end-stream)))

(defun flood-of (count first form)
  "The octets of the frame FIRST and of COUNT times the frame FORM."
  (concatenate 'octets (opening-octets first) (repeated (opening-octets form) count)))

(test what-servers-should-do
  "So that what follows fails for the right reason."
  (with-log ()
    (check-answer "good" (ok-and-then '("grpc-status" "0")) :ok)
    (check-answer "bad" (apply #'answered-by-fields (response-fields '("grpc-status" "5")))
                  :not-found)))

(test no-http2
  (with-random (no-http2)
    (with-log ()
      (loop for (name . opening) in `(("HTTP/1" . ,(ascii-octets "HTTP/1.1 400 Bad Request"))
                                      ("random" . ,(random-octets 5000))
                                      ("nothing" . :close)
                                      ("half" . ,(octets-of 0 0 6 4 0))
                                      ("push" . ,(opening-octets '(:settings (:enable-push 1))))
                                      ("window" . ,(opening-octets '(:settings (:initial-window-size
                                                                                #x80000000))))
                                      ("no settings" . ,(opening-octets '(:ping 1))))
            do (check-answer name nil :unavailable
                             :opening opening :options '(:preface-timeout-seconds 0.2))))))

(test what-speaks-no-http2-is-called-by-its-name
  (with-log ()
    (loop for (opening . wanted) in `((,(ascii-octets "HTTP/1.1 400 Bad Request") . "HTTP/1.1")
                                      (,(octets-of 21 3 1 0 2 2 70 0 0 0) . "TLS"))
          do (with-evil-server (address :opening opening) nil
               (grpc:with-channel (channel address)
                 (let ((text (princ-to-string (nth-value 1 (attempt :ask channel)))))
                   (is (search (format nil "the peer speaks ~A" wanted) text) "~A" text)
                   (is (not (search "perhaps" text)) "~A" text)))))))

(test header-lists-that-are-too-large
  "In one frame, in many, and as a short block that stands for a long list; in trailers as well."
  (with-log ()
    (let ((large (loop repeat 10 collect (list "x" (make-string 3000 :initial-element #\v)))))
      (check-answer "headers" (apply #'answered-by-fields
                                     (apply #'response-fields '("grpc-status" "0") large))
                    :resource-exhausted)
      (check-answer "trailers" (apply #'ok-and-then '("grpc-status" "0") large)
                    :resource-exhausted)
      (check-answer "bomb"
                    (frames (id)
                      `(:headers ,id ,(response-fields (first large)))
                      `(:headers ,id ,(make-array 1000 :element-type 'octet :initial-element #xBE)
                                 :end-stream))
                    :resource-exhausted)
      (check-answer "continuations"
                    (lambda (id)
                      (apply #'opening-octets `(:headers ,id ,(make-octets 16000) :open)
                             (loop repeat 5
                                   collect `(:continuation ,id ,(make-octets 16000) :open))))
                    :resource-exhausted))))

(test binary-metadata-of-a-server-that-is-none
  (with-log ()
    (check-answer "headers" (frames (id) `(:headers ,id ,(response-fields '("x-bin" "!!")))
                              `(:data ,id ,(note-octets 1))
                              `(:headers ,id (("grpc-status" "0")) :end-stream))
                  :internal)
    (check-answer "trailers" (ok-and-then '("grpc-status" "0") '("x-bin" "!!")) :internal)
    (check-answer "of an error" (ok-and-then '("grpc-status" "5") '("x-bin" "!!")) :not-found)))

(test statuses-of-http
  (with-log ()
    (loop for (code status) in '((204 :unknown) (301 :unknown) (400 :internal)
                                 (401 :unauthenticated) (403 :permission-denied)
                                 (404 :unimplemented) (418 :unknown) (429 :unavailable)
                                 (500 :unknown) (502 :unavailable)
                                 (503 :unavailable) (504 :unavailable) (999 :unknown))
          for fields = `((":status" ,(princ-to-string code)) ("content-type" "text/html"))
          do (check-answer code (apply #'answered-by-fields fields) status)
             (check-answer code (let ((fields fields))
                                  (frames (id) `(:headers ,id ,fields)
                                    `(:data ,id "<html>sorry" :end-stream)))
                           status))))

(test no-grpc-status
  (with-log ()
    (dolist (value '("" "x" "5x" "+5" "-1" "99" "999999999999999999999"))
      (check-answer value (ok-and-then (list "grpc-status" value)) :unknown))
    (check-answer "other trailers" (ok-and-then '("x" "y")) :unknown)
    (check-answer "headers only" (apply #'answered-by-fields (response-fields)) :unknown)
    (check-answer "no content-type"
                  (frames (id) `(:headers ,id ((":status" "200"))) `(:data ,id "" :end-stream))
                  :unknown)
    (check-answer "no trailers"
                  (frames (id) `(:headers ,id ,(response-fields))
                    `(:data ,id ,(note-octets 1) :end-stream))
                  :internal)))

(test wrong-number-of-messages
  (with-log ()
    (check-answer "two"
                  (frames (id) `(:headers ,id ,(response-fields))
                    `(:data ,id ,(note-octets 1)) `(:data ,id ,(note-octets 2))
                    `(:headers ,id (("grpc-status" "0")) :end-stream))
                  '(:unimplemented :ok :unimplemented :ok))
    (check-answer "none"
                  (frames (id) `(:headers ,id ,(response-fields))
                    `(:headers ,id (("grpc-status" "0")) :end-stream))
                  '(:unimplemented :ok :unimplemented :ok))))

(test messages-that-are-none
  (with-log ()
    (loop for (octets status) in *bad-contents*
          do (let ((octets octets))
               (check-answer octets
                             (frames (id) `(:headers ,id ,(response-fields)) `(:data ,id ,octets)
                               `(:headers ,id (("grpc-status" "0")) :end-stream))
                             status)))))

(test broken-http2
  "What is wrong with the stream ends the call as :internal, what is wrong with the connection as
:unavailable, and headers that are too large as :resource-exhausted."
  (with-log ()
    (loop for (wanted . answer)
            in (list
                (cons :internal (frames (id) `(:data ,id "x")))
                (cons :internal (frames (id) `(:headers ,id (("content-type" "application/grpc")))))
                (cons :internal (frames (id) `(:headers ,id ((":status" "100")) :end-stream)))
                (cons :internal (frames (id) `(:headers ,id ,(response-fields))
                                  `(:headers ,id ,(response-fields))))
                (cons :internal (frames (id) `(:headers ,id ,(response-fields '("X" "y")))))
                (cons :internal (frames (id) `(:window-update ,id 0)))
                (cons :internal (frames (id) `(:window-update ,id #x7FFFFFFF)))
                (cons :resource-exhausted
                      (frames (id)
                        `(:headers ,id ,(response-fields
                                         (list "x" (make-string 16350 :initial-element #\y))))))
                (cons :unavailable (frames (id) '(:window-update 0 #x7FFFFFFF)))
                (cons :unavailable (frames (id) `(:headers 2 ,(response-fields))))
                (cons :unavailable (frames (id) `(:headers 99 ,(response-fields))))
                (cons :unavailable (frames (id) `(:headers ,id ,(octets-of 128))))
                (cons :unavailable (frames (id) `(:frame 5 4 ,id ,(octets-of 0 0 0 2))))
                (cons :unavailable (frames (id) `(:frame 0 8 ,id ,(octets-of 200))))
                (cons :unavailable (frames (id) `(:frame 0 0 ,id ,(make-octets 16385))))
                (cons :unavailable (frames (id) `(:headers ,id ,(response-fields) :open)
                                     '(:ping 1)))
                (cons :resource-exhausted (lambda (id)
                                            (flood-of 10000 `(:headers ,id :none :open)
                                                      `(:continuation ,id ,(octets-of) :open))))
                (cons :unavailable (frames (id) `(:headers ,id ,(response-fields)) :close))
                (cons :unavailable (frames (id) `(:headers ,id ,(response-fields))
                                     `(:data ,id ,(octets-of 0 0 0 0 9 1)) :close)))
          for i from 0
          do (check-answer i answer wanted))))

(test resets
  "Every error code, known or not, before and after the headers."
  (with-log ()
    (loop for code in '(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 255 #xFFFFFFFF)
          for status = (case code
                         (7 :unavailable) (8 :cancelled) (11 :resource-exhausted)
                         (12 :permission-denied)
                         (t :internal))
          do (let ((code code))
               (check-answer code (frames (id) `(:rst-stream ,id ,code)) status)
               (check-answer code (frames (id) `(:headers ,id ,(response-fields))
                                    `(:rst-stream ,id ,code))
                             status)))
    (with-evil-server (address) (frames (id) `(:rst-stream ,id :refused-stream))
      (grpc:with-channel (channel address)
        (is (not (status:rpc-error-sent-p (nth-value 1 (attempt :ask channel)))))))))

(test goaways
  (with-log ()
    (check-answer "not covered" (frames (id) '(:goaway 0 :no-error)) :unavailable)
    (check-answer "rising" (frames (id) '(:goaway 0 11) '(:goaway #x7FFFFFFF 0)) :unavailable)
    (check-answer "first of all" nil :unavailable
                  :opening (opening-octets '(:settings) '(:goaway 0 :no-error)))
    (check-answer "covered"
                  (frames (id) `(:headers ,id ,(response-fields)) `(:goaway ,id :no-error)
                    `(:data ,id ,(note-octets 1)) `(:headers ,id (("grpc-status" "0")) :end-stream))
                  :ok)
    (with-evil-server (address) (frames (id) '(:goaway 0 :no-error))
      (grpc:with-channel (channel address)
        (is (not (status:rpc-error-sent-p (nth-value 1 (attempt :ask channel)))))))))

(test goaway-flood
  "A server that says why it goes again and again is heard once."
  (with-log ()
    (with-evil-server (address) (lambda (id) (repeated (opening-octets `(:goaway ,id 11)) 900))
      (grpc:with-channel (channel address)
        (is (eq :deadline-exceeded (attempt :ask channel :timeout 0.05)))
        (is (= 1 (length (events-of :goaway))))))))

(test silence
  "Servers that never answer, or answer without end: the deadline ends the call."
  (with-log ()
    (loop for (name opening answer)
            in (list (list "nothing at all" (octets-of) nil)
                     (list "only settings" nil nil)
                     (list "no streams"
                           (opening-octets '(:settings (:max-concurrent-streams 0))) nil)
                     (list "no window" (opening-octets '(:settings (:initial-window-size 0))) nil)
                     (list "only headers" nil (frames (id) `(:headers ,id ,(response-fields))))
                     (list "half a message" nil
                           (frames (id) `(:headers ,id ,(response-fields))
                             `(:data ,id ,(octets-of 0 0 0 0 9 1))))
                     (list "empty data" nil
                           (lambda (id)
                             (flood-of 500 `(:headers ,id ,(response-fields)) `(:data ,id ""))))
                     (list "interim" nil
                           (lambda (id)
                             (let ((hundred (octets-of 8 3 49 48 48)))
                               (flood-of 500 `(:headers ,id ,hundred)
                                         `(:headers ,id ,hundred))))))
          do (check-answer name answer :deadline-exceeded :opening opening :timeout 0.05))))

(test after-the-end
  "What comes on a stream after its end is for nobody; the connection decides."
  (with-log ()
    (dolist (more (list (lambda (id) `(:data ,id "x")) (lambda (id) `(:rst-stream ,id 0))
                        (lambda (id) `(:headers ,id (("grpc-status" "13")) :end-stream))))
      (let ((more more))
        (check-answer "more" (lambda (id)
                               (append (funcall (ok-and-then '("grpc-status" "0")) id)
                                       (list (funcall more id))))
                      :ok)))))

(defmacro with-decent-server (() &body body)
  "Evaluate BODY, in which servers mean ill, while a bystander calls another server from this image,
so over the same loop; see CALL-WATCHED."
  `(with-probe (channel) (:ask #'answer)
     (ask channel (note 6))
     (with-bystander (channel) ,@body)))

(test floods-of-servers
  "What costs us an answer or work each, in place of an answer: the connection is ended."
  (with-decent-server ()
    (loop for (form . more) in `(((:ping 7)) ((:settings)) ((:settings (:initial-window-size 0)))
                                 ((:window-update 0 1)) ((:priority 3 1))
                                 ((:headers 1 ,(response-fields)) (:data 1 ""))
                                 ((:headers 1 :none :open) (:continuation 1 ,(octets-of 0) :open))
                                 ((:frame 99 0 0 ,(octets-of 1))))
          do (let ((form form) (more more))
               (with-evil-server (address)
                   (fn (_id) (flood-of 100000 form (or (first more) form)))
                 (grpc:with-channel (channel address)
                   (multiple-value-bind (status error) (attempt :ask channel)
                     (is (eq (if (member :open form) :resource-exhausted :unavailable) status)
                         "~S: ~A" form status)
                     (is (search "ENHANCE_YOUR_CALM" (princ-to-string error)) "~S: ~A" form
                         error))))))))

(test header-bombs-of-servers
  "Headers that unpack to far more than is taken end their call; the connection goes on."
  (with-decent-server ()
    (let ((large (list "x" (make-string 3000 :initial-element #\y)))
          (bomb (make-array 10000 :element-type 'octet :initial-element #xBE)))
      (check-answer "bomb"
                    (frames (id) `(:headers ,id ,(response-fields large))
                      `(:headers ,id ,bomb :end-stream))
                    :resource-exhausted))))

(test answers-without-end
  "A server that sends messages to a caller that takes none, and more than there is window for."
  (with-decent-server ()
    (with-evil-server (address)
        (lambda (id)
          (concatenate 'octets
                       (opening-octets `(:headers ,id ,(response-fields)))
                       (repeated (opening-octets `(:data ,id ,(note-octets 1 :body 16000))) 300)))
      (grpc:with-channel (channel address)
        (let ((call (watch channel (note 1))))
          (eventually (grpc:call-status call))
          (is (eq :internal (grpc:call-status call)))
          (is (search "FLOW_CONTROL_ERROR" (princ-to-string (caught (numbers call))))))))))

(test closing-a-channel-ends-everything
  "Calls without a deadline on a connection that the server neither serves nor closes, retired by a
GOAWAY or not, end when the channel is closed."
  (with-log ()
    (grpc:with-channel (another "127.0.0.1:9") ; keeps the channels' loop
      (declare (ignorable another))
      ;; with the greatest identifier a GOAWAY may come again, for the second call
      (dolist (answer (list (frames (id) `(:headers ,id ,(response-fields)))
                            (frames (id) `(:headers ,id ,(response-fields))
                                         '(:goaway #x7fffffff 0))))
        (with-evil-server (address) answer
          (let* ((channel (grpc:make-channel address))
                 (call (chat channel :open :timeout nil))
                 (future (grpc:call-async #'lab.bench:ask channel (note 1))))
            (grpc:call-metadata call)   ; waits for the headers
            (grpc:close-channel channel)
            (is (eq :cancelled (grpc:call-status call)))
            (eventually (grpc:future-done-p future))
            (is (member (status:rpc-error-status (caught (grpc:await future)))
                        '(:cancelled :unavailable)))))))))

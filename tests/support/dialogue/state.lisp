;;;; Every input in every state of a stream (RFC 9113 section 5.1), at both ends. The tables below
;;;; were written from the RFC, not from src/http/http2/stream-state.lisp. A cell is
;;;;   ok           the owner is told
;;;;   quiet        nothing is said and the owner is not told
;;;;   (rst CODE)   stream error: RST_STREAM; if the owner knows the stream it gets ON-RESET
;;;;   (end CODE)   connection error: GOAWAY, ON-CLOSE
;;;;   sent         of what we send: one frame goes out
;;;;   misuse       of what we send: MISUSE is signalled

(in-package #:clgrpc.tests.dialogue)

(defun enter-state (state)
  "Bring stream 1 into STATE."
  (let ((server-p (eq :server (h2:connection-role (connection)))))
    (unless (eq state :idle)
      (let ((remote-end (when (member state '(:half-closed-remote :closed)) '(:end-stream)))
            (local-end (member state '(:half-closed-local :closed))))
        (cond (server-p
               (hears `(:headers 1 :post ,@remote-end))
               (respond 1 :ok :end (and local-end t)))
              (t
               (request :post :end (and local-end t))
               (when remote-end (hears `(:headers 1 :ok ,@remote-end)))))
        (case state
          (:reset (h2:reset-stream (find-stream 1) 8))
          (:reset-by-peer (hears '(:rst-stream 1 :cancel))))))
    (flush)
    (setf (dialogue-events *dialogue*) '())))

(defparameter *inputs*
  '(:headers (:headers 1 :none)
    :request (:headers 1 :post)
    :request-end (:headers 1 :post :end-stream)
    :response (:headers 1 :ok)
    :response-end (:headers 1 :ok :end-stream)
    :trailers (:headers 1 :done :end-stream)
    :data (:data 1 "x")
    :data-end (:data 1 "x" :end-stream)
    :rst-stream (:rst-stream 1 :cancel)
    :window-update (:window-update 1 1)
    :priority (:priority 1 0)))

(defun outcome ()
  "What the last input led to, as a cell of the tables."
  (let* ((said (read-frame-forms (dialogue-peer *dialogue*) (flush)))
         (reset (find :rst-stream said :key #'first))
         (goaway (find :goaway said :key #'first))
         (told (dialogue-events *dialogue*)))
    (cond (goaway
           (is (find (list :close (third goaway)) told :test #'equal))
           (list 'end (third goaway)))
          (reset (list 'rst (third reset)))
          (said (list 'said said))
          (told 'ok)
          (t 'quiet))))

(defun check-cell (role state input expected)
  (let ((*dialogue* (begin-dialogue role '())))
    (shake-hands)
    (enter-state state)
    (hears (getf *inputs* input))
    (let ((outcome (outcome)))
      (is (equal expected outcome) "~A ~A, ~A: ~A, not ~A." role state input outcome expected))))

(defmacro define-state-test (name role states &body rows)
  "Define the test NAME of ROWS (input cell…), a cell for each of STATES."
  `(test ,name
     (loop for (input . cells) in ',rows
           do (loop for state in ',states
                    for cell in cells
                    do (check-cell ,role state input cell)))))

(define-state-test server-receives :server
    (:idle :open :half-closed-local :half-closed-remote :closed :reset :reset-by-peer)
  (:request-end ok (rst :protocol-error) (rst :protocol-error) (rst :stream-closed)
                (end :stream-closed) quiet (end :stream-closed))
  (:request ok (rst :protocol-error) (rst :protocol-error) (rst :stream-closed)
            (end :stream-closed) quiet (end :stream-closed))
  (:trailers (rst :protocol-error) ok ok (rst :stream-closed) (end :stream-closed) quiet
             (end :stream-closed))
  (:data (end :protocol-error) ok ok (rst :stream-closed) (rst :stream-closed) quiet
         (rst :stream-closed))
  (:data-end (end :protocol-error) ok ok (rst :stream-closed) (rst :stream-closed) quiet
             (rst :stream-closed))
  (:rst-stream (end :protocol-error) ok ok ok quiet quiet quiet)
  (:window-update (end :protocol-error) quiet quiet quiet quiet quiet quiet)
  (:priority quiet quiet quiet quiet quiet quiet quiet))

(define-state-test client-receives :client
    (:idle :open :half-closed-local :half-closed-remote :closed :reset :reset-by-peer)
  (:response (end :protocol-error) ok ok (rst :stream-closed) (end :stream-closed) quiet
             (end :stream-closed))
  (:response-end (end :protocol-error) ok ok (rst :stream-closed) (end :stream-closed) quiet
                 (end :stream-closed))
  (:data (end :protocol-error) (rst :protocol-error) (rst :protocol-error) (rst :stream-closed)
         (rst :stream-closed) quiet (rst :stream-closed))
  (:rst-stream (end :protocol-error) ok ok ok quiet quiet quiet)
  (:window-update (end :protocol-error) quiet quiet quiet quiet quiet quiet)
  (:priority quiet quiet quiet quiet quiet quiet quiet))

;;; What we send

(defun perform (output)
  "Do OUTPUT to stream 1; return a cell."
  (let ((stream (find-stream 1)))
    (handler-case
        (ecase output
          (:trailers (respond 1 :done :end t))
          (:data (h2:send-data stream (ascii-octets "x") 0 1 nil))
          (:data-end (h2:send-data stream (ascii-octets "x") 0 1 t))
          (:reset (h2:reset-stream stream 8)))
      (misuse () (return-from perform 'misuse)))
    (let ((said (read-frame-forms (dialogue-peer *dialogue*) (flush))))
      (if (null said) 'quiet 'sent))))

(test what-is-sent-in-each-state
  "By both ends alike."
  (loop for (output . cells) in '((:trailers sent misuse sent misuse misuse misuse)
                                  (:data sent misuse sent quiet quiet quiet)
                                  (:data-end sent misuse sent quiet quiet quiet)
                                  (:reset sent sent sent quiet quiet quiet))
        do (loop for state in '(:open :half-closed-local :half-closed-remote :closed :reset
                                :reset-by-peer)
                 for cell in cells
                 do (dolist (role '(:server :client))
                      (let ((*dialogue* (begin-dialogue role '())))
                        (shake-hands)
                        (enter-state state)
                        (let ((outcome (perform output)))
                          (is (eq cell outcome) "~A ~A, ~A: ~A, not ~A." role state output
                              outcome cell)))))))

;;; Identifiers (5.1.1)

(define-dialogue even-identifiers-are-not-the-clients (:server)
  "A client's streams have odd identifiers."
  (hears '(:headers 2 :get :end-stream))
  (says '(:goaway 0 :protocol-error))
  (sees '(:close :protocol-error)))

(define-dialogue identifiers-only-rise (:server)
  "A stream that was left out counts as closed and cannot be opened any more."
  (hears '(:headers 5 :get) '(:headers 3 :get))
  (says '(:goaway 5 :protocol-error))
  (sees '(:headers 5 "/" nil) '(:reset 5 :protocol-error :connection) '(:closed 5)
        '(:close :protocol-error)))

(define-dialogue server-cannot-open-streams (:client)
  "Push is refused, so every stream is ours."
  (hears '(:headers 2 :ok))
  (says '(:goaway 0 :protocol-error))
  (sees '(:close :protocol-error)))

(define-dialogue opened-and-dropped (:client)
  "A stream reset before its headers were sent is unknown to the peer; its number is free."
  (let ((stream (h2:open-stream (connection))))
    (signals misuse (h2:open-stream (connection)))
    (h2:reset-stream stream 8)
    (sees '(:closed 1))
    (is (= 1 (request :get :end t)))
    (says '(:headers 1 :get :end-stream))))

(define-dialogue many-resets-are-remembered (:server)
  "Late frames of streams that we reset are dropped, however many there are."
  (loop for id from 1 below 4001 by 2
        do (hears `(:headers ,id :get))
           (h2:reset-stream (find-stream id) 8))
  (flush)
  (setf (dialogue-events *dialogue*) '())
  (hears '(:data 1 "late") '(:data 3001 "late") '(:headers 1 :done :end-stream)
         '(:headers 3999 :done :end-stream) '(:rst-stream 2001 :cancel)))

(define-dialogue refused-streams (:server :max-concurrent-streams 2)
  "A stream above the limit is refused; its header block counts for HPACK all the same (5.1.2)."
  (hears '(:headers 1 :get) '(:headers 3 :get)
         '(:headers 5 ((":method" "POST") (":scheme" "http") (":path" "/indexed"))))
  (says '(:rst-stream 5 :refused-stream))
  (sees '(:headers 1 "/" nil) '(:headers 3 "/" nil))
  (hears '(:data 5 "late"))
  (silent)
  (hears '(:rst-stream 1 :cancel))
  (sees '(:reset 1 :cancel :peer) '(:closed 1))
  (hears '(:headers 7 ((":method" "POST") (":scheme" "http") (":path" "/indexed"))))
  (sees '(:headers 7 "/indexed" nil)))

;;;; A backend: an HTTP/2 server of frames that a scenario scripts, so that it can refuse, reset,
;;;; fall silent and send GOAWAY at will. It shares nothing with our server, and records what comes
;;;; to it: LINES, its connections, and ATTEMPTS, the streams on them.
;;;;
;;;; Answers are short, so the flow control of a client is never in their way; what clients may send
;;;; is more than any scenario sends.

(in-package #:clgrpc.tests.policy)

(defconstant +port+ 50051 "Where backends listen.")

(defstruct (backend (:copier nil))
  "A scripted server."
  (name "" :type string)                ; of its host: b1, b2, …
  (lab nil)                             ; the LAB it is in
  (host nil)                            ; where it runs
  (listener nil)                        ; what takes its connections, or nil if it refuses them
  (lines '() :type list)                ; its connections, newest first
  ;; what it does, see SET-BACKEND
  (mode :accept :type (member :accept :refuse :silent :close :greet))
  (rules '() :type list)                ; RULEs
  (max-streams nil)                     ; its MAX_CONCURRENT_STREAMS, or nil for none
  (settings-delay 0)                    ; seconds until its SETTINGS
  (mute nil :type boolean)              ; it writes nothing any more
  (health nil)                          ; what it says of itself, or nil: it has no such service
  ;; the status that each call for that or LOAD-STREAM ends with after a message, or nil
  (side-end nil)
  (token nil)                           ; the authorization without which calls fail, or nil
  (load nil)                            ; the report in its trailers, a plist, or nil
  (load-stream nil))                    ; the report it sends by itself, or nil: no such service

(defstruct (line (:copier nil))
  "A connection of a backend."
  (backend nil :type backend)           ; whose it is
  (number 0 :type index)                ; from 1 on
  (peer nil)                            ; our end
  (speaker (dialogue:make-peer))        ; its HPACK state
  (inbox (make-octets 0) :type octets)  ; what has come and is not understood yet
  (greeted nil :type boolean)           ; our SETTINGS are out
  (preface nil :type boolean)           ; theirs has come
  (attempts '() :type list)             ; those that have not ended
  ;; what scenarios ask for
  (at 0)                                ; when it came, in seconds
  (settled nil :type boolean)           ; the client has acknowledged our SETTINGS
  (closed nil :type boolean)            ; it has ended
  (pings 0 :type index)                 ; that came
  (most 0 :type index)                  ; the most calls there were at once
  (over 0 :type index)                  ; calls beyond the MAX_CONCURRENT_STREAMS acknowledged
  ;; MAX_CONCURRENT_STREAMS
  (limit nil)                           ; that is acknowledged
  (offered '() :type list)              ; those that are not, oldest first
  ;; GOAWAY
  (last-id 0 :type index)               ; the last stream there was
  (draining nil :type boolean))         ; a GOAWAY is out

(defmethod print-object ((backend backend) stream)
  (print-unreadable-object (backend stream :type t)
    (format stream "~A ~(~A~)" (backend-name backend) (backend-mode backend))))

(defmethod print-object ((line line) stream)
  (print-unreadable-object (line stream :type t)
    (format stream "~D of ~A" (line-number line) (backend-name (line-backend line)))))

(defun tell (line &rest frames)
  "Send FRAMES, in the notation of the dialogues, unless the backend is mute or LINE has ended."
  (unless (or (backend-mute (line-backend line)) (line-closed line))
    (sim:say (line-peer line) (dialogue:frames-octets (line-speaker line) frames))))

(defun offer-settings (line)
  "Send LINE our SETTINGS."
  (let ((most (backend-max-streams (line-backend line))))
    (setf (line-offered line) (append (line-offered line) (list most))
          (line-greeted line) t)
    (tell line `(:settings (:initial-window-size 4194304)
                           ,@(when most `((:max-concurrent-streams ,most)))))))

(defun close-line (line)
  (unless (shiftf (line-closed line) t)
    (dolist (attempt (shiftf (line-attempts line) '())) (note-end attempt :lost))
    (sim:hang-up (line-peer line))))

(defun reset-line (line)
  (unless (shiftf (line-closed line) t)
    (dolist (attempt (shiftf (line-attempts line) '())) (note-end attempt :lost))
    (sim::reset-socket (sim::peer-socket (line-peer line)))))

(defun close-when-done (line)
  "Close LINE, which drains, a moment after its last call."
  (when (and (line-draining line) (notany #'test-call-p (line-attempts line)))
    (sim:at 1/10 (lambda () (close-line line)))))

(defun drain-line (line)
  (unless (shiftf (line-draining line) t)
    (tell line `(:goaway ,(line-last-id line) :no-error))
    (close-when-done line)))

;;; What comes

(defun take-line (backend peer)
  "PEER is the end of a new connection."
  (let ((line (make-line :backend backend :peer peer :at (sim:now)
                         :number (1+ (length (backend-lines backend))))))
    (push line (backend-lines backend))
    (ecase (backend-mode backend)
      ((:accept :refuse)
       (sim:at (backend-settings-delay backend)
               (lambda ()
                 (offer-settings line)
                 (tell line '(:window-update 0 8388608))
                 (understand line))))
      (:silent)
      (:close (close-line line))
      (:greet (offer-settings line)     ; and goes
       (sim:at 1/1000 (lambda () (close-line line)))))))

(defun hear-line (line)
  "Take in what has come on LINE."
  (setf (line-inbox line) (apply #'concatenate 'octets (line-inbox line)
                                 (sim:hear (line-peer line))))
  (when (line-greeted line) (understand line))
  (when (sim:left-p (line-peer line)) (close-line line)))

(defun understand (line)
  "Do what the whole frames in LINE's inbox say."
  (let ((inbox (line-inbox line)) (at 0))
    (when (and (not (line-preface line)) (<= 24 (length inbox)))
      (setf (line-preface line) t
            at 24))
    (when (line-preface line)
      (loop while (and (<= (+ at 9) (length inbox))
                       (<= (+ at 9 (u24be inbox at)) (length inbox)))
            do (multiple-value-bind (frame after) (dialogue:split-frame inbox at)
                 (setf at after)
                 (take-frame line frame))))
    (setf (line-inbox line) (subseq inbox at))))

(defun take-frame (line frame)
  (destructuring-bind (type flags id payload) frame
    (if (zerop type)
        (take-data line id payload (logtest 1 flags))
        (destructuring-bind (kind . rest)
            (dialogue:frame-form (line-speaker line) frame
                                 (lambda () (error "A block of fields has pieces.")))
          (case kind
            (:headers (take-head line (first rest) (second rest) (member :end-stream rest)))
            (:settings (tell line '(:settings-ack)))
            (:settings-ack (setf (line-limit line) (pop (line-offered line))
                                 (line-settled line) t))
            (:ping (incf (line-pings line))
             (tell line (cons :ping-ack rest)))
            (:rst-stream (take-reset line (first rest) (second rest))))))))

;;; Its life

(defun something-new-p (backend)
  (or (and (backend-listener backend) (sim::socket-backlog (backend-listener backend)))
      (find-if (lambda (line)
                 (and (not (line-closed line))
                      (or (sim:left-p (line-peer line))
                          (sim::socket-incoming (sim::peer-socket (line-peer line))))))
               (backend-lines backend))))

(defun run-backend (backend)
  "What BACKEND does all the time."
  (loop
    (sim:wait-until (lambda () (something-new-p backend)))
    (loop for peer = (and (backend-listener backend) (sim:accept-peer (backend-listener backend)))
          while peer
          do (take-line backend peer))
    (dolist (line (backend-lines backend))
      (unless (line-closed line) (hear-line line)))))

(defun listen-or-not (backend)
  "BACKEND listens if its mode is not :refuse."
  (let ((listener (backend-listener backend)))
    (cond ((eq :refuse (backend-mode backend))
           (when listener (sim::close-socket listener))
           (setf (backend-listener backend) nil))
          ((null listener)
           (sim:on-host ((backend-host backend))
             (setf (backend-listener backend) (sim:listen-as-peer +port+)))))))

(defun set-backend (backend &key (mode nil mode-p) (rules nil rules-p) (max-streams nil streams-p)
                              (settings-delay nil delay-p) (mute nil mute-p)
                              (health nil health-p) (load nil load-p) (load-stream nil stream-p)
                              (side-end nil side-p) (token nil token-p))
  "From now on BACKEND does what is given here; what is not, stays. RULES is a list of what
MAKE-RULE-OF takes; HEALTH is a list of a service and its status, such as (\"svc\" :serving)."
  (when rules-p (setf (backend-rules backend) (mapcar #'make-rule-of rules)))
  (when delay-p (setf (backend-settings-delay backend) settings-delay))
  (when mute-p (setf (backend-mute backend) mute))
  (when side-p (setf (backend-side-end backend) side-end))
  (when token-p (setf (backend-token backend) token))
  (when load-p (setf (backend-load backend) load))
  (when stream-p (setf (backend-load-stream backend) load-stream))
  (when streams-p
    (setf (backend-max-streams backend) max-streams)
    (dolist (line (backend-lines backend))
      (when (line-greeted line) (offer-settings line))))
  (when health-p
    (setf (backend-health backend) health)
    (mapc #'tell-all-health (backend-lines backend)))
  (when mode-p (setf (backend-mode backend) mode))
  (listen-or-not backend))

(defun add-backend (lab name options)
  "Start a backend called NAME with OPTIONS of SET-BACKEND."
  (let ((backend (make-backend :name name :lab lab :host (sim:add-host name))))
    (apply #'set-backend backend options)
    (sim:start-task name (lambda () (run-backend backend)) :host (backend-host backend))
    backend))

(defun do-to-lines (function backend)
  "Call FUNCTION with each connection of BACKEND that lives."
  (dolist (line (backend-lines backend))
    (unless (line-closed line) (funcall function line))))

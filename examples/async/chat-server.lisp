;;;; A chat: the first line that somebody sends is the name, the others go to everybody else. Try it
;;;; with `nc 127.0.0.1 PORT`, several times. Who does not read what is said is left out rather than
;;;; kept for; who sends no end of line is shown the door.

(defpackage #:clgrpc.examples.chat-server
  (:use #:cl)
  (:local-nicknames (#:as #:clgrpc.async))
  (:export #:run))

(in-package #:clgrpc.examples.chat-server)

(defparameter *longest-line* 1000 "In characters.")

(defstruct (guest (:copier nil))
  "NAME is nil until it has been said; LINE is what has come of one that is not whole."
  (name nil :type (or null string))
  (line "" :type string))

(defvar *sockets* '() "Those of all guests.")

(defun say (text &key (except nil))
  "Send TEXT as a line to every guest with a name but EXCEPT, a socket."
  (dolist (socket *sockets*)
    (when (and (guest-name (as:socket-data socket))
               (not (eq socket except))
               (< (as:socket-unsent-octets socket) 65536))
      (as:write-socket-data socket (format nil "~A~%" text)))))

(defun hear (socket line)
  "SOCKET's guest has sent LINE."
  (let ((guest (as:socket-data socket)))
    (cond ((guest-name guest)
           (say (format nil "~A: ~A" (guest-name guest) line) :except socket))
          (t (setf (guest-name guest) line)
             (say (format nil "* ~A has come" line))))))

(defun read-lines (socket octets)
  (let* ((guest (as:socket-data socket))
         (text (concatenate 'string (guest-line guest)
                            (sb-ext:octets-to-string octets :external-format :latin-1)))
         (start 0))
    (loop for end = (position #\Newline text :start start)
          while end
          do (hear socket (string-right-trim '(#\Return) (subseq text start end)))
             (setf start (1+ end)))
    (setf (guest-line guest) (subseq text start))
    (when (> (length (guest-line guest)) *longest-line*)
      (leave socket)
      (as:close-socket socket))))

(defun join (socket)
  (setf (as:socket-data socket) (make-guest))
  (push socket *sockets*)
  (as:write-socket-data socket (format nil "Who are you?~%")))

(defun leave (socket)
  (setf *sockets* (delete socket *sockets*))
  (let ((name (guest-name (as:socket-data socket))))
    (when name (say (format nil "* ~A has gone" name)))))

(defun run (&key (address "127.0.0.1") (port 5555) (on-start (constantly nil)))
  "Let people chat on PORT until the process gets SIGINT. ON-START is called with the server."
  (let ((*sockets* '()))
    (as:with-event-loop (:name "chat" :catch-app-errors t)
      (funcall on-start
               (as:tcp-server address port #'read-lines
                              :connect-cb #'join
                              :event-cb (lambda (event)
                                          (when (as:socket event) (leave (as:socket event))))))
      (as:signal-handler as:+sigint+ (lambda (signal)
                                       (declare (ignore signal))
                                       (as:exit-event-loop))))))

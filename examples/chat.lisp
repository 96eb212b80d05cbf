;;;; A chat for browsers. Its service has one unary method and one whose stream of answers has no
;;;; end, as pages can call them by Connect; its page, three files in chat/ without a build step,
;;;; is compiled into the image and served beside the service:
;;;;
;;;;   (start-server (make-instance 'chat) :protocols '(:connect) :http (list (chat-page)))
;;;;
;;;; The lines are a topic, to which each call of Join subscribes; it then waits without a thread. A
;;;; caller that does not read is ended rather than kept for: it may join again, and has the last
;;;; lines.

(in-package #:clgrpc.examples)

(defconstant +past-lines+ 20 "So many of the last lines a caller gets that joins.")
(defconstant +name-characters+ 40 "The longest name.")
(defconstant +text-characters+ 1000 "The longest text.")

(defclass chat (chat:chat)
  ((topic :initform (grpc:make-topic :past +past-lines+) :reader chat-topic) ; of all lines
   (said :initform (list 0) :reader chat-said)) ; the last number that a line has
  (:documentation "chat.Chat: a room in which everybody hears what is said."))

(defun check-text (what text longest)
  (unless (<= 1 (length text) longest)
    (grpc:fail :invalid-argument (format nil "~A has 1 to ~D characters" what longest))))

(defmethod chat.chat:say ((chat chat) line &key)
  (check-text "a name" (chat:line-name line) +name-characters+)
  (check-text "a text" (chat:line-text line) +text-characters+)
  (let ((said (chat:make-line :name (chat:line-name line) :text (chat:line-text line)
                              :number (1+ (sb-ext:atomic-incf (car (chat-said chat)))))))
    (grpc:broadcast (chat-topic chat) said)
    said))

(defmethod chat.chat:join ((chat chat) request &key call)
  (declare (ignore request))
  (grpc:send-metadata call '())         ; that the caller has joined, whether or not lines follow
  (grpc:subscribe (chat-topic chat) call :from :past))

;;; The page

(defmacro page-files (&rest rows)
  "A list of ROWS, each the name of a file in chat/ and its media type, with its text behind."
  `',(loop for (name type) in rows
           collect (list name type
                         (uiop:read-file-string
                          (merge-pathnames (concatenate 'string "chat/" name)
                                           (or *compile-file-truename* *load-truename*))
                          :external-format :utf-8))))

(defparameter *page-files*
  (page-files ("chat.html" "text/html; charset=utf-8")
              ("chat.css" "text/css; charset=utf-8")
              ("chat.js" "text/javascript; charset=utf-8"))
  "Name, media type and text of each file of the page.")

(defparameter *page-policy*
  (format nil "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; ~
               img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
  "What the page may do (Content-Security-Policy): run its own script and call where it came from.")

(defun chat-page ()
  "Return a handler for START-SERVER's :http that has the page of a CHAT at /chat/. The server needs
Connect among its protocols. From any thread."
  (grpc:http-handler
   "/chat/"
   (lambda (request)
     (let* ((name (subseq (grpc:http-request-path request) (length "/chat/")))
            (row (assoc (if (string= "" name) "chat.html" name) *page-files* :test #'string=)))
       (if row
           (values 200
                   (list (cons "content-type" (second row))
                         (cons "content-security-policy" *page-policy*)
                         '("x-content-type-options" . "nosniff")
                         '("referrer-policy" . "no-referrer")
                         '("cache-control" . "no-cache"))
                   (third row))
           (values 404 '(("content-type" . "text/plain")) "There is no such file."))))))

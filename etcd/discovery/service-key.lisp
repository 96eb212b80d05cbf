;;;; The keys. A server of the service NAME has the key NAME/ID, as in etcd's Go package; ID is its
;;;; address unless it has chosen another. The Go package treats every key that begins with NAME as
;;;; a server, so the service config is elsewhere.

(in-package #:clgrpc.discovery)

(defconstant +longest-name+ 512 "The maximum number of characters of a service's name.")

(defun check-name (name)
  "Return NAME if it is valid for a service; else signal MISUSE."
  (unless (and (stringp name)
               (<= 1 (length name) +longest-name+)
               (every (lambda (char) (char< #\Space char #\Rubout)) name)
               (char/= #\/ (char name 0))
               (char/= #\/ (char name (1- (length name)))))
    (misuse "The name of a service is 1 to ~D characters of ASCII without spaces, with no slash at ~
             its ends; not ~S." +longest-name+ name))
  name)

(defun name-prefix (name)
  "The prefix of the keys of NAME's servers."
  (format nil "~A/" name))

(defun endpoint-key (name id)
  "Return the key of the server ID, a string, of the service NAME. Channels to etcd:///NAME expect a
value of ENDPOINT-TEXT at this key. From any thread."
  (concatenate 'string (name-prefix name) id))

(defun service-config-key (name)
  "The key of the service config of NAME, a string: channels to etcd:///NAME use the JSON that is
put under this key. Signal MISUSE for a wrong name. From any thread."
  (format nil "clgrpc/service-config/~A" (check-name name)))

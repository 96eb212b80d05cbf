;;;; Stores by name, and what a client of etcd needs beside leases that it has been granted: to
;;;; renew and end those that somebody else has, by the numbers that entries tell.

(in-package #:clgrpc.cluster)

(defun open-store (name &rest options)
  "Return a client of the store that NAME says: \"etcd:HOST:PORT\", of several members with commas
between, \"etcd:10.0.0.1:2379,10.0.0.2:2379\". OPTIONS are as for MAKE-ETCD: :timeout, :credentials
and so on. Connects nothing yet. Signal MISUSE for another name. From any thread; end it with
CLOSE-ETCD."
  (let ((prefix "etcd:"))
    (unless (and (stringp name) (uiop:string-prefix-p prefix name)
                 (< (length prefix) (length name)))
      (misuse "A store is \"etcd:HOST:PORT\", not ~S." name))
    (apply #'etcd:make-etcd
           (let ((endpoints (uiop:split-string (subseq name (length prefix)) :separator ",")))
             (if (rest endpoints) endpoints (first endpoints)))
           options)))

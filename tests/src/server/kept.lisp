;;;; All memory that a connection refers to is charged to its account. A walk from the connection's
;;;; structures through slots, vectors, lists and tables adds up all objects; the charge must equal
;;;; this sum within a factor.

(in-package #:clgrpc.tests.server)

(defparameter *others*
  '(loop:event-loop server::server-loop server:wire-server options http2:sink http2:pool
                    loop:handler timer
    server::owner-usage server::peer-entry server::peer-view loop:quota account function symbol
    package
    class
    method:rpc-method server::server-route wire::connection-protocol
    rpc:observer loop:tls-credentials sb-thread:mutex rpc:operations server::route-table
    exchange:http-loop loop:byte-channel)
  "Objects that a walk skips, since they are not a connection's, or are charged to it in any case.")

(defun other-p (object)
  (or (typep object '(or number character null))
      (some (lambda (type) (typep object type)) *others*)
      ;; constant fields, which all connections share
      (find object hpack::**static-fields**)))

(defun check-kept (link what)
  "Check that the memory to which LINK refers is no more than its charge. It may be less, since
calls may share their fields."
  (multiple-value-bind (octets found) (support:walk-octets link #'other-p)
    (let ((charged (octets-charged link)))
      (is (<= octets (+ 4096 (* 5/4 charged))) "~A: ~D octets, ~D charged: ~S" what octets charged
          (subseq found 0 (min 6 (length found)))))))

(defun raw-request (id &rest parts)
  "The frame of a request on stream ID whose header block is PARTS, vectors of octets."
  (let ((block (apply #'concatenate 'octets parts)))
    (concatenate 'octets (list 0 (ash (length block) -8) (logand 255 (length block)) 1 5 0 0
                               (ash id -8) (logand 255 id))
                 block)))

(defun repeat-dropped-fields ()
  "Repeat blocks whose path the table drops soon afterwards."
  (let ((type (concatenate 'octets '(#x0f #x10 16) (ascii-octets "application/grpc"))) (id 1))
    (flet ((request (&rest parts)
             (memory:say memory:*world* memory:*end*
                         (apply #'raw-request id '(#x83 #x86) (append parts (list type))))
             (incf id 2)))
      (dotimes (i 16)
        ;; 3,983 octets, which are an entry of the table
        (request '(#x44 #x7f #x90 #x1e) (list 47 (+ 97 i))
                 (make-array 3981 :element-type 'octet :initial-element #xE9))
        (loop repeat 3 do (request '(#xbe)))))))

(defun repeat-literals ()
  "Repeat blocks with many fields that no table keeps."
  (loop for i below 16
        do (loop for id from (+ 1 (* 6 i)) by 2 repeat 3
                 do (memory:say memory:*world* memory:*end*
                                (raw-request id '(#x83 #x86 #x04 2 47) (list (+ 97 i))
                                             (loop for j from 33 repeat 45
                                                   append (list #x0f #x04 1 j)))))))

(test all-that-a-connection-keeps-is-charged
  "This holds whatever its peer has sent."
  (flet ((stuffed (what function &rest options)
           (with-server-loop (server-loop :options options)
               (:ask #'double :collect (fn (_stream call) call))
             (comes server-loop)
             (let ((link (link-of memory:*end* server-loop)))
               (check-kept link "a new connection")
               (funcall function)
               (is (null (server::server-link-failure link)))
               (check-kept link what)))))
    (stuffed "open calls" (lambda ()
                            (loop for id from 1 by 2 repeat 50
                                  do (begins-to-ask id :fields (fat-fields 100)))))
    (stuffed "the same fields" (lambda ()
                                 (loop for id from 1 by 2 repeat 50
                                       do (begins-to-ask id :fields '(("authorization" "x"))))))
    (stuffed "plain requests" (lambda ()
                                (loop for id from 1 by 2 repeat 50
                                      do (gets-plainly id (fat-fields 100)))))
    (stuffed "half a frame" (lambda ()
                              (memory:say memory:*world* memory:*end*
                                          (concatenate 'octets '(0 64 0 0 0 0 0 0 1)
                                                       (make-octets 16000)))))
    (stuffed "half a block" (lambda ()
                              (memory:say memory:*world* memory:*end*
                                          (concatenate 'octets '(0 60 0 1 0 0 0 0 1)
                                                       (make-octets 15360)
                                                       '(0 60 0 9 0 0 0 0 1)
                                                       (make-octets 15360)))))
    (stuffed "half a message" (lambda ()
                                (begins-to-ask 1)
                                (memory:hears `(:data 1 ,(subseq (coerce (note-octets 1 :body 60000)
                                                                         'octets)
                                                                 0 16000)))))
    (stuffed "whole messages that nobody takes"
             (lambda ()
               (begins-to-ask 1 :method "Collect")
               (loop repeat 20
                     do (memory:hears `(:data 1 ,(coerce (note-octets 1 :body 3000) 'octets))))))
    (stuffed "requests without an end"
             (lambda ()
               (loop for id from 1 by 2 repeat 20
                     do (begins-to-ask id)
                        (memory:hears `(:data ,id ,(coerce (note-octets 1 :body 3000) 'octets))))))
    (stuffed "output that is not taken"
             (lambda ()
               (setf (memory:end-full memory:*end*) t)
               (loop for id from 1 by 2 repeat 200
                     do (asks id "No.such.method.which.has.a.long.name" 1))))
    (stuffed "answers without window"
             (lambda ()
               (memory:hears '(:settings (:initial-window-size 0)))
               (loop for id from 1 by 2 repeat 20 do (asks id "Ask" 1 :body 5000))))
    (stuffed "tables, after a call" (lambda ()
                                      (asks 1 "Ask" 1)
                                      (begins-to-ask 3 :fields (fat-fields 60))
                                      (memory:hears '(:rst-stream 3 :cancel))))
    (stuffed "blocks whose fields the table has dropped" #'repeat-dropped-fields)
    (stuffed "blocks with fields of their own" #'repeat-literals)))

(defun http1-head (method &key (headers 0) (body 0))
  "The octets of the head of an HTTP/1.1 request with HEADERS headers and a body of BODY octets to
come."
  (ascii-octets (format nil "~{~A~C~C~}"
                        (loop for line in `(,(format nil "~A /path HTTP/1.1" method)
                                            "Host: a"
                                            ,(format nil "Content-Length: ~D" body)
                                            ,@(loop for (name value) in (fat-fields headers)
                                                    collect (format nil "~A: ~A" name value))
                                            "")
                              append (list line #\Return #\Newline)))))

(test all-that-a-connection-of-http1-keeps-is-charged
  "As over HTTP/2: before its protocol is known, within a head, a body or a pipeline, and with
answers that are not taken."
  (flet ((stuffed (what parts &key full (answer (constantly 204)))
           (with-server-loop (server-loop) (:ask #'double)
             (answer-http server-loop answer)
             (let ((link (connects server-loop)))
               (check-kept link "a connection that has said nothing")
               (setf (memory:end-full memory:*end*) full)
               (dolist (part parts)
                 (memory:say memory:*world* memory:*end* part))
               (is (null (server::server-link-failure link)))
               (check-kept link what))))
         (later (&rest request)
           (declare (ignore request))
           (values 200 '() (make-string 100000 :initial-element #\a))))
    (stuffed "the beginning of a preface" (list (subseq dialogue:*preface* 0 9)))
    (stuffed "half a head" (list (subseq (http1-head "GET" :headers 50) 0 300)))
    (stuffed "half a body" (list (http1-head "POST" :headers 50 :body 60000)
                                 (make-octets 30000)))
    (stuffed "a head after an answer" (list (http1-head "GET" :headers 50)))
    (stuffed "an answer that is not taken, and a pipeline behind it"
             (list (apply #'concatenate 'octets
                          (loop repeat 30 collect (http1-head "GET" :headers 20))))
             :full t :answer #'later)))

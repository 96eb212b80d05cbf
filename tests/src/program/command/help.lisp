;;;; Help texts: the lines of a command's usage.

(in-package #:clgrpc.tests.command)

(test usages-fill-their-lines
  "A line has less than 80 columns, and the next line's first word would not have fitted."
  (let* ((lines (uiop:split-string
                 (string-right-trim '(#\Newline)
                                    (with-output-to-string (stream)
                                      (command::write-usage
                                       (command:make-command
                                        :name "sample" :invocation "clgrpc sample"
                                        :options (loop for i from 1 to 200
                                                       append (command:option-list
                                                               (a "N" #'identity nil "Which.")
                                                               (bcd "NAME" #'identity nil "What.")
                                                               (efghij "FILE" #'identity nil
                                                                       "Where."))))
                                       stream)))
                 :separator '(#\Newline)))
         (words (mapcar (lambda (line)
                          (let ((start (position #\Space line :test #'char/=)))
                            (subseq line start (let ((end (position #\] line :start start)))
                                                 (and end (1+ end))))))
                        lines)))
    (is (< 50 (length lines)))
    (loop for line in lines
          for next in (rest words)
          do (is (< (length line) 80) "~S" line)
             (is (<= 80 (+ (length line) 1 (length next))) "~S could have ~S" line next))))
